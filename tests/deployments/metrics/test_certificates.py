"""Until when certificates are valid, as a scrape shows it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from prometheus_client import CollectorRegistry, generate_latest

from deployments.metrics.certificates import VARIABLES, Certificates
from tests.support.metrics import exposed, values

NAME = "spectra:certificate_expiration_timestamp_seconds"
SOON = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)
LATER = SOON + timedelta(days=400)


def scrape(environment: dict[str, str]) -> str:
    registry = CollectorRegistry()
    registry.register(Certificates("tiny", environment))
    return generate_latest(registry).decode()


def test_the_first_certificate_of_a_file_to_expire_counts_and_a_renewed_one_is_seen(tmp_path: Path) -> None:
    authority, file = trustme.CA(), tmp_path / "cert.pem"
    environment = {name: str(file) for name in VARIABLES.values()}
    registry = CollectorRegistry()
    registry.register(Certificates("tiny", environment))

    def until() -> set[float]:
        return set(values(generate_latest(registry).decode(), NAME, model_name="tiny"))

    for leaf in (SOON, LATER):
        issued = authority.issue_cert("127.0.0.1", not_after=leaf)
        issued.private_key_and_cert_chain_pem.write_to_path(str(file))
        authority.cert_pem.write_to_path(str(file), append=True)
        assert until() == {leaf.timestamp()}
    assert [values(generate_latest(registry).decode(), NAME, certificate=kind) for kind in VARIABLES] == [
        [LATER.timestamp()]
    ] * len(VARIABLES)


def test_what_is_no_certificate_has_no_series_and_the_family_is_there(tmp_path: Path) -> None:
    (tmp_path / "text.pem").write_text("none")
    for environment in ({}, {"RAY_TLS_SERVER_CERT": str(tmp_path / "gone.pem")}):
        assert exposed(scrape(environment | {"RAY_TLS_CA_CERT": str(tmp_path / "text.pem")})) == {NAME}
        assert values(scrape(environment), NAME) == []
