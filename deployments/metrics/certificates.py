"""Until when the certificates of this process's node are valid, read from their files when it is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deployments.metrics.families import OURS

HTTPS = "SPECTRA_TLS_CERT"  # the certificate that clients see, as HAProxy has it
VARIABLES = {  # label -> variable that names the file
    "https": HTTPS,
    "ray": "RAY_TLS_SERVER_CERT",
    "ray-ca": "RAY_TLS_CA_CERT",
    "redis": "RAY_REDIS_CLIENT_CERT",
    "redis-ca": "RAY_REDIS_CA_CERT",
}


class Certificates(Collector):
    """Seconds since 1970 at which each expires; a series per file that the environment names and that can be read.

    Args:
        model: name in the labels.
        environment: of the process.
    """

    def __init__(self, model: str, environment: Mapping[str, str]) -> None:
        self._model = model
        self._files = {kind: Path(environment[name]) for kind, name in VARIABLES.items() if environment.get(name)}

    def collect(self) -> Iterator[Metric]:
        """The family, also without certificates."""
        family = GaugeMetricFamily(
            f"{OURS}:certificate_expiration_timestamp_seconds",
            "When the first certificate of a file expires.",
            labels=["model_name", "certificate"],
        )
        for kind, file in self._files.items():
            with contextlib.suppress(OSError, ValueError):  # gone or being replaced: what uses it says so
                family.add_metric([self._model, kind], _expires(file))
        yield family


def _expires(file: Path) -> float:
    from cryptography import x509  # most processes have no certificates

    return min(one.not_valid_after_utc.timestamp() for one in x509.load_pem_x509_certificates(file.read_bytes()))
