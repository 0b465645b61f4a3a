"""Metrics of a process and its node that are read at every scrape: memory, CPU time, descriptors, certificates."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client import Metric, ProcessCollector
from prometheus_client.registry import Collector

from deployments.metrics.families import MODEL, OURS, read_family

LABELS = ("process", "pid", "node")
EXPOSED = {  # of ``ProcessCollector``
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_cpu_seconds",
    "process_open_fds",
    "process_max_fds",
}
HTTPS_CERTIFICATE = "SPECTRA_TLS_CERT"  # environment variable of the certificate that clients see, as HAProxy has it
CERTIFICATES = {  # label -> environment variable with the file's path
    "https": HTTPS_CERTIFICATE,
    "ray": "RAY_TLS_SERVER_CERT",
    "ray-ca": "RAY_TLS_CA_CERT",
    "redis": "RAY_REDIS_CLIENT_CERT",
    "redis-ca": "RAY_REDIS_CA_CERT",
}


class ProcessMetrics(Collector):
    """Metrics of the calling process; all are gauges, so a replaced replica takes its series with it.

    Args:
        kind: ``ingress``, ``router`` or ``answers``.
        node: address of the node.
    """

    def __init__(self, kind: str, node: str) -> None:
        self._values = (kind, str(os.getpid()), node)
        self._system = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        for metric in self._system.collect():
            if metric.name in EXPOSED:
                series = [(self._values, metric.samples[0].value)]
                yield read_family("gauge", f"{OURS}:{metric.name}", metric.documentation, LABELS, series)
        collections = [
            ((*self._values, str(generation)), float(stats["collections"]))
            for generation, stats in enumerate(gc.get_stats())
        ]
        text = "Garbage collections since the start."
        yield read_family("gauge", f"{OURS}:python_gc_collections", text, (*LABELS, "generation"), collections)


class CertificateMetrics(Collector):
    """Expiry of the node's certificates, in seconds since 1970; a series for every readable file.

    Args:
        model: label.
        environment: of the process; names the files.
    """

    def __init__(self, model: str, environment: Mapping[str, str]) -> None:
        self._model = model
        self._files = {kind: Path(environment[name]) for kind, name in CERTIFICATES.items() if environment.get(name)}

    def collect(self) -> Iterator[Metric]:
        series = []
        for kind, file in self._files.items():
            with contextlib.suppress(OSError, ValueError):  # missing or being replaced: the file's user reports that
                series.append(((self._model, kind), _read_expiry(file)))
        yield read_family(
            "gauge",
            f"{OURS}:certificate_expiration_timestamp_seconds",
            "When the first certificate of a file expires.",
            (MODEL, "certificate"),
            series,
        )


def _read_expiry(file: Path) -> float:
    from cryptography import x509  # most processes have no certificates

    return min(one.not_valid_after_utc.timestamp() for one in x509.load_pem_x509_certificates(file.read_bytes()))
