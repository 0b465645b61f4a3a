"""Who may use the Redis store and how it is reached: TLS, users, Sentinel, Cluster; and what each refusal says."""

from __future__ import annotations

import traceback
from contextlib import closing, suppress
from pathlib import Path

import pytest
import trustme

from retrieval_store.errors import StoreUnavailableError
from retrieval_store.stores.open import open_store
from retrieval_store.stores.records import Current, StoreOptions
from tests.retrieval_store.stores.conftest import ACL, CLUSTER_ACL, SECRET, SENTINEL_ACL, USER
from tests.retrieval_store.stores.store_kinds import StoreKind
from tests.retrieval_store.stores.tls_relay import TlsRelay
from tests.support.redis_server import HOST, RedisServer, ask, sentinel, wait_until
from tests.support.snapshot_folders import contents, make_snapshot
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.matrix

OPTIONS = StoreOptions(chunk_bytes=1000)
DOCS = Path(__file__).parents[3] / "docs" / "explanation" / "retrieval.md"


def refusal(url: str) -> str:
    """The message of ``current`` of the store."""
    with closing(open_store(url, "space")) as store, pytest.raises(StoreUnavailableError) as caught:
        store.current()
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr(store) + store.url
    return str(caught.value)


def test_the_documented_acl_rule_is_the_tested_one() -> None:
    for rule in (ACL, CLUSTER_ACL, SENTINEL_ACL):
        assert rule in DOCS.read_text()


@pytest.mark.parametrize(
    ("login", "trusted", "password", "said"),
    [
        ("", "own", SECRET + "x", "SPECTRA_REDIS_PASSWORD"),
        ("", "own", "", "SPECTRA_REDIS_PASSWORD"),
        (f"stranger:{SECRET}@", "own", "", "docs/explanation/retrieval.md"),
        (f"{USER}:{SECRET}@", "none", "", "?ca=FILE"),
        (f"{USER}:{SECRET}@", "other", "", "?ca=FILE"),
    ],
)
def test_a_refused_login_or_certificate_is_explained_without_the_password(
    login: str,
    trusted: str,
    password: str,
    said: str,
    tls_place: tuple[StoreKind, TlsRelay],
    ca: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, relay = tls_place
    with closing(place.raw()) as admin:
        ask(admin, "ACL", "SETUSER", "stranger", "on", f">{SECRET}", "~other:*", "+@all")  # type: ignore[arg-type]
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    if password:
        monkeypatch.setenv("SPECTRA_REDIS_USERNAME", USER)
        monkeypatch.setenv("SPECTRA_REDIS_PASSWORD", password)
    option = {"own": f"?ca={ca}", "other": f"?ca={tmp_path}/other.pem", "none": ""}[trusted]
    message = refusal(f"rediss://{login}localhost:{relay.port}/0{option}")
    assert said in message
    assert f"localhost:{relay.port}/0" in message


def test_wrong_servers_are_refused_by_name(server: RedisServer, authority: trustme.CA, ca: Path) -> None:
    with TlsRelay(server.port, authority, names=("elsewhere.example",)) as relay:
        assert "not trusted" in refusal(f"rediss://localhost:{relay.port}/0?ca={ca}")
    assert "not available" in refusal(f"rediss://localhost:{server.port}/0?ca={ca}")
    assert "cluster" in refusal(f"redis+cluster://{HOST}:{server.port}").lower()


def test_a_password_in_the_url_is_used(tls_place: tuple[StoreKind, TlsRelay], ca: Path, tmp_path: Path) -> None:
    _, relay = tls_place
    url = f"rediss://{USER}:{SECRET}@localhost:{relay.port}/0?ca={ca}"
    with closing(open_store(url, "in url", StoreOptions(chunk_bytes=1000))) as store:
        version = make_snapshot(tmp_path / "built", 1)
        store.publish(tmp_path / "built")
        store.activate(version)
        assert SECRET not in repr(store) + store.url
        for _ in range(3):
            relay.cut()
            assert store.current().revision == 1


def test_the_store_continues_at_the_replica_when_the_primary_dies(tmp_path: Path) -> None:
    with sentinel(down_after=3000) as watched, closing(open_store(watched.url, "space", OPTIONS)) as store:
        folder = tmp_path / "built"
        version = make_snapshot(folder, 1)
        store.publish(folder)
        store.activate(version)
        with watched.primary.client() as client:
            assert ask(client, "WAIT", 1, 0) == 1
        assert "other" in refusal(watched.url.replace("/spectra/", "/other/"))
        watched.primary.kill()

        def answers() -> bool:
            with suppress(StoreUnavailableError):
                return store.current() == Current(version, 1)
            return False

        assert not answers()
        wait_until(answers, "the replica as primary")
        assert contents(store.fetch(version, tmp_path / "local")) == contents(folder)
        make_snapshot(tmp_path / "next", 2)
        assert store.activate(store.publish(tmp_path / "next")).revision == 2
        assert store.wait(LIMIT_S)
