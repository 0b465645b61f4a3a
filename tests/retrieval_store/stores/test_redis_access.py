"""Who may use the Redis store, and how it is reached: TLS, users, Sentinel, Cluster; what is said when it fails."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import trustme

from retrieval_store.errors import StoreError, StoreUnavailableError
from retrieval_store.snapshots.snapshot import read_manifest
from retrieval_store.stores.base import Current, Store, StoreOptions
from retrieval_store.stores.open import open_store
from tests.retrieval_store.stores.conftest import ACL, CLUSTER_ACL, SECRET, SENTINEL_ACL, USER
from tests.support.redis_server import HOST, RedisServer, ask, cluster, sentinel, wait_until
from tests.support.snapshot_folders import contents, make_snapshot
from tests.support.tls_relay import TlsRelay

OPTIONS = StoreOptions(chunk_bytes=1000)
QUICK = StoreOptions(connect_seconds=1.0, read_seconds=1.0)  # where an error is expected
DOCS = Path(__file__).parents[3] / "docs" / "stores.md"
Guarded = tuple[RedisServer, TlsRelay, Path]


def check_round_trip(store: Store, folder: Path) -> None:
    """Publish, activate, fetch, log and hints."""
    version = make_snapshot(folder, 1)
    store.publish(folder)
    assert store.activate(version) == Current(version, 1)
    assert contents(store.fetch(version, folder.parent / "local")) == contents(folder)
    store.append([[1, 2]], 10)
    assert [list(entry.tokens) for entry in store.entries()] == [[1, 2]]
    assert store.wait(5.0)


def refusal(url: str) -> str:
    """What ``current`` of the store says, in full."""
    with closing(open_store(url, "space", QUICK)) as store, pytest.raises(StoreUnavailableError) as caught:
        store.current()
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr(store) + store.url
    return str(caught.value)


def test_the_documented_acl_rule_is_the_tested_one() -> None:
    for rule in (ACL, CLUSTER_ACL, SENTINEL_ACL):
        assert rule in DOCS.read_text()


@pytest.mark.parametrize("right", [word for word in ACL.split() if word.startswith("+") and word != "+ping"])
def test_every_right_of_the_documented_rule_is_needed(right: str, server: RedisServer, tmp_path: Path) -> None:
    fewer = ACL.replace(f" {right} ", " ") if f" {right} " in ACL else ACL.removesuffix(f" {right}")
    assert fewer != ACL
    with server.client() as admin:
        for rule, name in ((ACL, "all"), (fewer, "fewer")):
            ask(admin, "ACL", "SETUSER", name, "reset", "on", ">secret", *rule.split())
        outcomes = [
            used_in_full(server, name, tmp_path / name, f"space of {name} {right}", patience)
            for name, patience in (("all", 20.0), ("fewer", 1.5))
        ]
        ask(admin, "ACL", "DELUSER", "all", "fewer")
    assert outcomes == [True, False]


def used_in_full(server: RedisServer, user: str, folder: Path, space: str, patience: float) -> bool:
    """Whether the user may do everything; what comes later than ``patience`` seconds does not."""
    url = f"redis://{user}:secret@{HOST}:{server.port}/1"
    with closing(open_store(url, space, StoreOptions(grace_seconds=0.01))) as store:
        try:
            if not store.wait(patience):
                return False
            versions = []
            for number in range(2):
                make_snapshot(folder / str(number), number)
                versions.append(store.publish(folder / str(number)))
                store.publish(folder / str(number))
                store.activate(versions[-1])
            make_snapshot(folder / "3", 3)
            store.publish(folder / "3")
            wait_until(lambda: len(store.versions()) == 2, "an expired version", timeout=patience)
            store.fetch(versions[1], folder / "local")
            store.retire(read_manifest(folder / "3").version)
            store.history()
            store.append([[1]], 10)
            store.trim(store.entries()[0].id)
        except (StoreUnavailableError, TimeoutError):
            return False
    return may_abandon(url, space)


def may_abandon(url: str, space: str) -> bool:
    """Whether the user may remove an upload, which the store tries without a word."""
    with closing(open_store(url, space)) as store:
        try:
            store._client.call("UNLINK", store._keys.upload("x"))  # type: ignore[attr-defined]
        except StoreError:
            return False
    return True


def test_a_wrong_password_is_named_without_showing_it(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    _, relay, ca = guarded
    monkeypatch.setenv("SPECTRA_REDIS_USERNAME", USER)
    monkeypatch.setenv("SPECTRA_REDIS_PASSWORD", SECRET + "x")
    message = refusal(f"rediss://localhost:{relay.port}/0?ca={ca}")
    assert "SPECTRA_REDIS_PASSWORD" in message
    assert f"rediss://{USER}@localhost:{relay.port}/0" in message


def test_a_missing_password_is_named(guarded: Guarded) -> None:
    _, relay, ca = guarded
    assert "SPECTRA_REDIS_PASSWORD" in refusal(f"rediss://localhost:{relay.port}/0?ca={ca}")


def test_a_password_in_the_url_is_used_and_not_shown(guarded: Guarded, tmp_path: Path) -> None:
    _, relay, ca = guarded
    with closing(open_store(f"rediss://{USER}:{SECRET}@localhost:{relay.port}/0?ca={ca}", "in url", OPTIONS)) as store:
        check_round_trip(store, tmp_path / "built")
        assert SECRET not in repr(store) + store.url


def test_a_user_without_rights_to_the_keys_is_named(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    running, relay, ca = guarded
    with running.client(username="admin", password="admin") as admin:
        ask(admin, "ACL", "SETUSER", "stranger", "on", f">{SECRET}", "~other:*", "+@all")
    assert "docs/stores.md" in refusal(f"rediss://stranger:{SECRET}@localhost:{relay.port}/0?ca={ca}")


def test_an_authority_that_is_not_named_is_not_trusted(guarded: Guarded) -> None:
    _, relay, _ = guarded
    assert "?ca=FILE" in refusal(f"rediss://{USER}:{SECRET}@localhost:{relay.port}/0")


def test_another_authority_is_not_trusted(guarded: Guarded, tmp_path: Path) -> None:
    _, relay, _ = guarded
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    assert "?ca=FILE" in refusal(f"rediss://{USER}:{SECRET}@localhost:{relay.port}/0?ca={other}")


def test_a_certificate_for_another_host_is_not_trusted(server: RedisServer, tmp_path: Path) -> None:
    with TlsRelay(server.port, names=("elsewhere.example",)) as relay:
        assert "not trusted" in refusal(f"rediss://localhost:{relay.port}/0?ca={relay.write_ca(tmp_path)}")


def test_a_ca_file_that_is_not_there_is_named_at_once() -> None:
    with pytest.raises(StoreError, match=r"nowhere\.pem"):
        open_store("rediss://localhost/0?ca=nowhere.pem", "space")
    with pytest.raises(StoreError, match=r"nowhere\.pem"):
        open_store("rediss://localhost/0", "space", StoreOptions(ca_file="nowhere.pem"))


def test_the_ca_file_of_the_options_is_used(guarded: Guarded, tmp_path: Path) -> None:
    _, relay, ca = guarded
    url = f"rediss://{USER}:{SECRET}@localhost:{relay.port}/0"
    options = StoreOptions(ca_file=str(ca), chunk_bytes=1000)
    with closing(open_store(url, "ca of options", options)) as store:
        check_round_trip(store, tmp_path / "built")


def test_plain_redis_where_tls_is_spoken_and_the_reverse_are_away(server: RedisServer, guarded: Guarded) -> None:
    _, _, ca = guarded
    assert "not available" in refusal(f"rediss://{USER}:{SECRET}@localhost:{server.port}/0?ca={ca}")


def test_a_cut_tls_connection_is_made_again(guarded: Guarded) -> None:
    _, relay, ca = guarded
    with closing(open_store(f"rediss://{USER}:{SECRET}@localhost:{relay.port}/0?ca={ca}", "cut", OPTIONS)) as store:
        for _ in range(3):
            assert store.current() == Current("", 0)
            relay.cut()


def test_databases_of_a_server_are_apart(server: RedisServer) -> None:
    with (
        closing(open_store(f"redis://{HOST}:{server.port}/3", "space")) as third,
        closing(open_store(f"redis://{HOST}:{server.port}/4", "space")) as fourth,
    ):
        third.append([[1]], 10)
        assert fourth.entries() == []
        assert len(third.entries()) == 1


def test_the_store_goes_on_at_the_replica_when_the_primary_dies(tmp_path: Path) -> None:
    with sentinel(down_after=3.0) as watched, closing(open_store(watched.url, "space", OPTIONS)) as store:
        folder = tmp_path / "built"
        version = make_snapshot(folder, 1)
        store.publish(folder)
        store.activate(version)
        store.wait(1.0)
        with watched.primary.client() as client:
            assert ask(client, "WAIT", 1, 5000) == 1
        watched.primary.kill()
        with pytest.raises(StoreUnavailableError):
            store.current()
        wait_until(lambda: answers(store), "the replica as primary")
        assert store.current() == Current(version, 1)
        assert contents(store.fetch(version, tmp_path / "local")) == contents(folder)
        make_snapshot(tmp_path / "next", 2)
        assert store.activate(store.publish(tmp_path / "next")).revision == 2
        assert store.wait(5.0)
        watched.primary.start()  # comes back, and becomes the replica's replica
        assert store.current().revision == 2


def answers(store: Store) -> bool:
    """Whether the store can be reached."""
    try:
        store.current()
    except StoreUnavailableError:
        return False
    return True


def test_a_sentinel_that_knows_no_such_service_is_named(tmp_path: Path) -> None:
    with sentinel() as watched:
        message = refusal(watched.url.replace("/spectra/", "/other/"))
    assert "other" in message


def test_sentinel_with_tls_and_passwords(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, authority: trustme.CA, relays: Callable[[int], int]
) -> None:
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    with sentinel(password="of the sentinel", seen_port=relays) as watched:
        for one in (watched.primary, watched.replica):
            with one.client() as client:
                ask(client, "ACL", "SETUSER", USER, "on", f">{SECRET}", *ACL.split())
        with watched.sentinel.client(password="of the sentinel") as client:
            ask(client, "ACL", "SETUSER", "watcher", "on", ">of the watcher", *SENTINEL_ACL.split())
        url = f"rediss+sentinel://{HOST}:{relays(watched.sentinel.port)}/spectra/0?ca={ca}"
        monkeypatch.setenv("SPECTRA_REDIS_USERNAME", USER)
        monkeypatch.setenv("SPECTRA_REDIS_PASSWORD", SECRET)
        refusal(url)
        monkeypatch.setenv("SPECTRA_REDIS_SENTINEL_PASSWORD", "of the sentinel")
        with closing(open_store(url, "space", OPTIONS)) as store:
            check_round_trip(store, tmp_path / "1" / "built")
        monkeypatch.setenv("SPECTRA_REDIS_SENTINEL_USERNAME", "watcher")
        monkeypatch.setenv("SPECTRA_REDIS_SENTINEL_PASSWORD", "of the watcher")
        with closing(open_store(url, "another", OPTIONS)) as store:
            check_round_trip(store, tmp_path / "2" / "built")


def test_a_cluster_with_tls_that_dies_is_away(
    tmp_path: Path, authority: trustme.CA, relays: Callable[[int], int]
) -> None:
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    ports: dict[int, int] = {}
    with cluster(seen_port=lambda port: ports.setdefault(port, relays(port))) as nodes:
        for node in nodes:
            with node.client() as client:
                ask(client, "ACL", "SETUSER", USER, "on", f">{SECRET}", *ACL.split(), *CLUSTER_ACL.split())
        url = f"rediss+cluster://{USER}:{SECRET}@{HOST}:{ports[nodes[0].port]}?ca={ca}"
        with closing(open_store(url, "space", OPTIONS)) as store:
            check_round_trip(store, tmp_path / "built")
            for node in nodes:
                node.kill()
            with pytest.raises(StoreUnavailableError):
                store.current()
            assert not store.wait(0.2)
            for node in nodes:
                node.start()  # without a configuration: no slots
            with pytest.raises(StoreUnavailableError):
                store.current()


def test_a_cluster_url_for_a_server_that_is_none_is_named(server: RedisServer) -> None:
    assert "cluster" in refusal(f"redis+cluster://{HOST}:{server.port}").lower()
