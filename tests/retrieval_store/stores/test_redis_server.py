"""The Redis store when its server dies, hangs, comes back empty, is full, or holds keys of other programs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from retrieval_store.errors import StoreError, StoreUnavailableError, UnknownVersionError
from retrieval_store.stores.base import Store
from retrieval_store.stores.open import open_store
from retrieval_store.stores.records import Current, StoreOptions
from retrieval_store.stores.redis_layout import RedisKeys
from tests.retrieval_store.stores.store_kinds import CHUNK
from tests.support.redis_server import RedisServer, ask
from tests.support.snapshot_folders import contents, make_snapshot
from tests.support.waiting import LIMIT_S, wait_until

SPACE = "space"
KEYS = RedisKeys(SPACE)


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A server that the test may kill."""
    with RedisServer() as running:
        yield running


@pytest.fixture
def opened(own: RedisServer) -> Iterator[Callable[..., Store]]:
    """Opens stores on it, and closes them after the test."""
    stores: list[Store] = []

    def make(**options: Any) -> Store:
        stores.append(open_store(own.url, SPACE, StoreOptions(**{"chunk_bytes": CHUNK, **options})))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a snapshot."""
    make_snapshot(tmp_path / "built", 1)
    return tmp_path / "built"


def every_call(store: Store, folder: Path, version: str) -> list[Callable[[], object]]:
    return [
        lambda: store.publish(folder),
        store.current,
        lambda: store.activate(version),
        store.rollback,
        lambda: store.retire(version),
        store.history,
        store.versions,
        lambda: store.manifest(version),
        lambda: store.fetch(version, folder.parent / "local"),
        lambda: store.append([[1]], 10),
        store.entries,
        lambda: store.trim("1-1"),
    ]


@pytest.mark.cluster
def test_every_call_reports_that_redis_is_away_and_works_again_when_it_is_back(
    own: RedisServer, opened: Callable[..., Store], folder: Path
) -> None:
    store = opened()
    version = store.publish(folder)
    store.activate(version)
    assert store.wait(LIMIT_S)
    own.kill()
    for call in every_call(store, folder, version):
        with pytest.raises(StoreUnavailableError, match=str(own.port)):
            call()
    wait_until(lambda: not store.wait(0.0))
    opened_while_away = opened()
    own.start()
    assert store.wait(LIMIT_S)  # it may have missed something
    assert (store.current(), store.versions(), store.history(), store.entries()) == (Current("", 0), [], [], [])
    for call in (lambda: store.activate(version), store.rollback):
        with pytest.raises(UnknownVersionError):
            call()
    assert opened_while_away.publish(folder) == version
    assert store.activate(version, 0) == Current(version, 1)
    assert contents(store.fetch(version, folder.parent / "local")) == contents(folder)


@pytest.mark.matrix
def test_a_redis_that_hangs_is_away_and_its_late_answers_reach_no_later_call(
    own: RedisServer, opened: Callable[..., Store], folder: Path
) -> None:
    patient, hasty = opened(read_seconds=LIMIT_S), opened(read_seconds=0.2)
    version = patient.publish(folder)
    patient.activate(version)

    def answers() -> bool:
        try:
            return hasty.current() == Current(version, 1)
        except StoreUnavailableError:
            return False

    wait_until(answers)  # connected
    os.kill(own.pid, signal.SIGSTOP)
    try:
        for call in (hasty.history, hasty.entries):
            with pytest.raises(StoreUnavailableError):
                call()
        assert not hasty.wait(0.1)
    finally:
        os.kill(own.pid, signal.SIGCONT)
    wait_until(answers)
    assert [move.version for move in patient.history()] == [version]


@pytest.mark.cluster
def test_a_move_whose_answer_is_lost_is_not_a_conflict(
    server: RedisServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_store(server.url, "lost answer")) as store:
        version = store.publish(folder)
        client = store._client  # type: ignore[attr-defined]
        execute = client._execute
        lost: list[object] = []

        def losing(command: tuple[object, ...]) -> object:
            answer = execute(command)
            if command[0] == "EVAL" and "'moved'" in str(command[1]) and not lost:
                lost.append(answer)
                raise redis.ConnectionError("lost")
            return answer

        monkeypatch.setattr(client, "_execute", losing)
        assert store.activate(version) == Current(version, 1)
        assert lost == [1]
        assert len(store.history()) == 1


@pytest.mark.matrix
def test_a_full_redis_refuses_a_snapshot_and_keeps_the_old_one(
    own: RedisServer, opened: Callable[..., Store], folder: Path, tmp_path: Path
) -> None:
    store = opened()
    version = store.publish(folder)
    store.activate(version)
    make_snapshot(tmp_path / "large", 2, size=5_000_000)
    with own.client() as client:
        ask(client, "CONFIG", "SET", "maxmemory", ask(client, "INFO")["used_memory"] + 2_000_000)
        with pytest.raises(StoreError, match="maxmemory"):
            store.publish(tmp_path / "large")
        assert store.current() == Current(version, 1)
        assert [one.version for one in store.versions()] == [version]
        assert ask(client, "KEYS", "*upload*") == []


GARBAGE: dict[str, tuple[str | bytes | int, ...]] = {
    "current of another type": ("SET", KEYS.current, "text"),
    "a revision that is no number": ("HSET", KEYS.current, "version", "a" * 16, "revision", "many", "before", ""),
    "an invalid version": ("HSET", KEYS.current, "version", "../..", "revision", "1", "before", ""),
    "half a pointer": ("HSET", KEYS.current, "revision", "1"),
    "bytes that are no text": ("HSET", KEYS.current, "version", b"\xff\xfe", "revision", b"\xff", "before", b"\xff"),
    "history": ("RPUSH", KEYS.history, b"\xff not json"),
    "history of another form": ("RPUSH", KEYS.history, '{"revision": 1}'),
    "history of another type": ("SET", KEYS.history, "text"),
    "versions of another type": ("SET", KEYS.versions, "text"),
    "an invalid manifest": ("HSET", KEYS.version("a" * 16), "manifest", b"\xff"),
    "an empty manifest": ("HSET", KEYS.version("a" * 16), "manifest", "{}"),
    "a manifest of wrong types": ("HSET", KEYS.version("a" * 16), "manifest", '{"format": [], "format_version": {}}'),
    "a version of another type": ("SET", KEYS.version("a" * 16), "text"),
    "an entry without tokens": ("XADD", KEYS.log, "*", "other", "1"),
    "an entry of three bytes": ("XADD", KEYS.log, "*", "tokens", "abc"),
    "an entry of a large id": ("XADD", KEYS.log, "*", "tokens", b"\xff\xff\xff\xff"),
    "a log of another type": ("SET", KEYS.log, "text"),
}


@pytest.mark.cluster
@pytest.mark.parametrize("what", GARBAGE)
def test_a_value_that_does_not_decode_is_an_error_of_the_store(server: RedisServer, folder: Path, what: str) -> None:
    with server.client() as client, closing(open_store(server.url, SPACE)) as store:
        ask(client, "FLUSHALL")
        ask(client, "ZADD", KEYS.versions, 1, "a" * 16, 2, "../..", 3, b"\xff")
        ask(client, *GARBAGE[what])
        failed = 0
        for call in every_call(store, folder, "a" * 16):
            try:
                call()
            except StoreError as error:
                failed += not isinstance(error, StoreUnavailableError)
        assert failed
        ask(client, "FLUSHALL")
        ask(client, "ZADD", KEYS.versions, 1, "../..", 2, b"\xff", 3, "a" * 16)
        assert store.versions() == []
        ask(client, "FLUSHALL")
