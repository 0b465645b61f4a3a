"""The expiry of certificates, as a scrape shows it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from prometheus_client import CollectorRegistry, generate_latest

from deployments.metrics.process import CERTIFICATES, CertificateMetrics
from tests.support.metrics import exposed, values

NAME = "spectra:certificate_expiration_timestamp_seconds"
SOON = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)
LATER = SOON + timedelta(days=400)


def scrape(environment: dict[str, str]) -> str:
    registry = CollectorRegistry()
    registry.register(CertificateMetrics("tiny", environment))
    return generate_latest(registry).decode()


def test_the_first_certificate_of_a_file_to_expire_counts_and_a_renewed_one_is_seen(tmp_path: Path) -> None:
    authority, file = trustme.CA(), tmp_path / "cert.pem"
    registry = CollectorRegistry()
    registry.register(CertificateMetrics("tiny", {name: str(file) for name in CERTIFICATES.values()}))
    for leaf in (SOON, LATER):
        issued = authority.issue_cert("127.0.0.1", not_after=leaf)
        issued.private_key_and_cert_chain_pem.write_to_path(str(file))
        authority.cert_pem.write_to_path(str(file), append=True)
        text = generate_latest(registry).decode()
        for kind in CERTIFICATES:
            assert values(text, NAME, model_name="tiny", certificate=kind) == [leaf.timestamp()]


def test_files_without_a_certificate_have_no_series(tmp_path: Path) -> None:
    (tmp_path / "text.pem").write_text("none")
    for file in ("text.pem", "gone.pem"):
        text = scrape({"RAY_TLS_CA_CERT": str(tmp_path / file)})
        assert exposed(text) == {NAME}
        assert values(text, NAME) == []
