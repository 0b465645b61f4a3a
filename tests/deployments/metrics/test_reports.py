"""The counts of several ingresses are added up once, whichever of them is scraped and whichever leaves."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deployments.metrics.process import ProcessMetrics
from deployments.metrics.reports import MetricFamily, Reporter, Reports
from deployments.submission.client import SubmissionClient
from deployments.submission.server import SubmissionServer
from tests.support.submission import EndlessRequests
from tests.support.waiting import wait_until_async

MEMORY = "spectra:process_resident_memory_bytes"
SERVED = "spectra:served_total"


class IngressCounts:
    """The counts of one process."""

    def __init__(self, name: str) -> None:
        registry = CollectorRegistry()
        self.served = Counter("spectra:served", "Requests.", ["code"], registry=registry)
        self.sizes = Histogram("spectra:size_bytes", "Bodies.", buckets=(1, 10), registry=registry)
        self.reporter = Reporter(registry, ProcessMetrics(name, "here"))


def sums(reports: Reports) -> dict[str, float]:
    """Series as Prometheus reads them; of a process's labels only its name counts."""
    registry = CollectorRegistry()
    registry.register(reports)
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        found[family.name] = 0.0  # a family is there before anything is counted
        for sample in family.samples:
            labels = [sample.labels["process"]] if "pid" in sample.labels else sample.labels.values()
            found[" ".join((sample.name, *labels))] = sample.value
    return found


def test_counters_and_histograms_of_all_ingresses_are_added_up_and_outlive_them() -> None:
    reports, one, other = Reports(ProcessMetrics("router", "here")), IngressCounts("one"), IngressCounts("other")
    for number, ingress in enumerate((one, other)):
        reports.add(number, ingress.reporter.take())
    assert "spectra:served" in sums(reports)
    one.served.labels("200").inc(2)
    one.sizes.observe(5)
    for _ in range(3):  # only what is new counts
        reports.add(0, one.reporter.take())
    other.served.labels("200").inc()
    other.served.labels("400").inc()
    other.sizes.observe(50)
    report = msgspec.msgpack.decode(msgspec.msgpack.encode(other.reporter.take()), type=list[MetricFamily])
    reports.add(1, report)
    expected = {f"{SERVED} 200": 3, f"{SERVED} 400": 1, "spectra:size_bytes_sum": 55}
    expected |= {
        "spectra:size_bytes_count": 2,
        "spectra:size_bytes_bucket 10.0": 1,
        "spectra:size_bytes_bucket +Inf": 2,
    }
    found = sums(reports)
    assert expected.items() <= found.items()
    assert min(found[f"{MEMORY} one"], found[f"{MEMORY} other"]) > 0
    reports.forget(1)
    found = sums(reports)
    assert expected.items() <= found.items()
    assert f"{MEMORY} other" not in found
    assert found[f"{MEMORY} router"] > 0
    names = [family.name for family in reports.collect()]
    assert len(names) == len({*names}), "parsers refuse a family that is named twice"


async def test_an_ingress_reports_with_its_heartbeats_and_before_a_scrape() -> None:
    reports, endless, ingress = Reports(), EndlessRequests(), IngressCounts("one")
    server = SubmissionServer(endless.run, reports=reports)
    channel = SubmissionClient(server.attachment, beat=0.02, reporter=ingress.reporter)
    reporting = asyncio.create_task(channel.keep_reporting())
    ingress.served.labels("400").inc()
    await wait_until_async(lambda: sums(reports).get(f"{SERVED} 400") == 1)
    ingress.served.labels("400").inc()
    channel.report_metrics()  # as for a scrape
    await wait_until_async(lambda: sums(reports).get(f"{SERVED} 400") == 2)
    assert f"{MEMORY} one" in sums(reports)
    reporting.cancel()
    channel.close()
    await wait_until_async(lambda: f"{MEMORY} one" not in sums(reports))  # its process is gone, its counts stay
    assert sums(reports)[f"{SERVED} 400"] == 2
    with pytest.raises(asyncio.CancelledError):
        await reporting
    await server.close()
    assert endless.alive == 0
