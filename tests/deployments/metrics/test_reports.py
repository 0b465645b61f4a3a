"""What several ingresses count is added up once, whichever of them is scraped and whichever leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deployments.metrics.process import Process
from deployments.metrics.reports import Family, Reporter, Reports
from deployments.submission.client import SubmissionChannel
from deployments.submission.server import SubmissionServer
from engine.events import StepEvent
from engine.request import Request


class Ingress:
    """What one process counts."""

    def __init__(self, name: str) -> None:
        registry = CollectorRegistry()
        self.served = Counter("spectra:served", "Requests.", ["code"], registry=registry)
        self.sizes = Histogram("spectra:size_bytes", "Bodies.", buckets=(1, 10), registry=registry)
        self.reporter = Reporter(registry, Process(name, "here"))


def sums(reports: Reports) -> dict[str, float]:
    """Series without those of processes, as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(reports)
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            if "pid" not in sample.labels:
                found[" ".join((sample.name, *sample.labels.values()))] = sample.value
            else:
                found[f"{sample.name} {sample.labels['process']}"] = sample.value
    return found


def test_counters_and_histograms_of_all_ingresses_are_added_up_and_outlive_them() -> None:
    reports, one, other = Reports(), Ingress("one"), Ingress("other")
    for number, ingress in enumerate((one, other)):
        reports.add(number, ingress.reporter.take())  # before anything was counted
    one.served.labels("200").inc(2)
    one.sizes.observe(5)
    for _ in range(3):  # only what is new counts
        reports.add(0, one.reporter.take())
    other.served.labels("200").inc()
    other.served.labels("400").inc()
    other.sizes.observe(50)
    report = msgspec.msgpack.decode(msgspec.msgpack.encode(other.reporter.take()), type=list[Family])
    reports.add(1, report)
    wanted = {"spectra:served_total 200": 3, "spectra:served_total 400": 1, "spectra:size_bytes_sum": 55}
    wanted |= {"spectra:size_bytes_count": 2, "spectra:size_bytes_bucket 10.0": 1, "spectra:size_bytes_bucket +Inf": 2}
    found = sums(reports)
    assert {name: found[name] for name in wanted} == wanted
    memory = "spectra:process_resident_memory_bytes"
    assert min(found[f"{memory} one"], found[f"{memory} other"]) > 1e6
    reports.forget(1)
    found = sums(reports)
    assert {name: found[name] for name in wanted} == wanted
    assert f"{memory} other" not in found


def test_a_scrape_names_what_was_never_counted() -> None:
    reports, ingress = Reports(), Ingress("one")
    reports.add(0, ingress.reporter.take())
    registry = CollectorRegistry()
    registry.register(reports)
    assert b"# TYPE spectra:served_total counter" in generate_latest(registry)


async def test_an_ingress_reports_with_its_heartbeats_though_it_has_sent_no_request(tmp_path: Path) -> None:
    sent: list[Request] = []

    async def run(request: Request) -> AsyncGenerator[StepEvent, None]:
        sent.append(request)
        yield StepEvent(token_ids=[], finish_reason="stop")

    reports = Reports()
    server = SubmissionServer(run, reports=reports)
    ingress = Ingress("one")
    channel = SubmissionChannel(server.attachment, beat=0.02, reporter=ingress.reporter)
    reporting = asyncio.create_task(channel.keep_reporting())
    ingress.served.labels("400").inc()
    memory = "spectra:process_resident_memory_bytes one"
    async with asyncio.timeout(240):
        while sums(reports).get("spectra:served_total 400") != 1:
            await asyncio.sleep(0.01)
        ingress.served.labels("400").inc()
        channel.report()  # at once, as for a scrape
        while sums(reports).get("spectra:served_total 400") != 2:
            await asyncio.sleep(0)
        assert memory in sums(reports)
        reporting.cancel()
        channel.close()
        while memory in sums(reports):  # its process is gone, what it has counted is not
            await asyncio.sleep(0.01)
    assert sums(reports)["spectra:served_total 400"] == 2
    with pytest.raises(asyncio.CancelledError):
        await reporting
    await server.close()
    assert not sent
