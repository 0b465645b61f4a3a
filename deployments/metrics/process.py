"""Figures of one process of the application: memory, processor time, descriptors, garbage collections."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

from prometheus_client import Metric, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

LABELS = ["process", "pid", "node"]
SHOWN = {  # of ``ProcessCollector``
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_cpu_seconds",
    "process_open_fds",
    "process_max_fds",
}


class Process(Collector):
    """The calling process, read when it is asked for; that takes a fraction of a millisecond.

    All are gauges: a replica that is replaced takes its series with it.

    Args:
        kind: what the process is: ``ingress`` or ``router``.
        node: where it runs.
    """

    def __init__(self, kind: str, node: str) -> None:
        self._values = [kind, str(os.getpid()), node]
        self._system = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        """All families."""
        for metric in self._system.collect():
            if metric.name in SHOWN:
                family = GaugeMetricFamily(f"spectra:{metric.name}", metric.documentation, labels=LABELS)
                family.add_metric(self._values, metric.samples[0].value)
                yield family
        collections = GaugeMetricFamily(
            "spectra:python_gc_collections", "Garbage collections since the start.", labels=[*LABELS, "generation"]
        )
        for generation, stats in enumerate(gc.get_stats()):
            collections.add_metric([*self._values, str(generation)], stats["collections"])
        yield collections
