"""What the Redis store does when Redis dies, hangs, comes back empty, or holds what nobody of us wrote."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from retrieval_store.errors import StoreError, StoreUnavailableError, UnknownVersionError
from retrieval_store.stores.base import Current, Store, StoreOptions
from retrieval_store.stores.open import open_store
from retrieval_store.stores.redis_layout import RedisKeys
from tests.support.redis_server import HOST, RedisServer, ask, claimed, wait_until
from tests.support.snapshot_folders import FILES, contents, make_snapshot
from tests.support.store_kinds import CHUNK, ROOT, Worker

SPACE = "space"
KEYS = RedisKeys(SPACE)


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A server that the test may kill."""
    with RedisServer() as running:
        yield running


@pytest.fixture
def opened(own: RedisServer) -> Iterator[Callable[..., Store]]:
    """Stores on it, closed at the end."""
    stores: list[Store] = []

    def make(**options: float) -> Store:
        settings = StoreOptions(**{"chunk_bytes": CHUNK, **options})  # type: ignore[arg-type]
        stores.append(open_store(own.url, SPACE, settings))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def test_no_server_is_left_behind_by_a_test_run_that_is_killed() -> None:
    code = "from tests.support.redis_server import RedisServer; print(RedisServer().start().port, flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        port = int(run.stdout.readline())
        run.kill()

    def is_refused() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, port)) == errno.ECONNREFUSED

    wait_until(is_refused, "an end of the server")


def test_no_other_server_takes_the_port_of_a_killed_one() -> None:
    with RedisServer() as server:
        server.kill()
        assert claimed(server.port) is None


def every_call(store: Store, folder: Path, version: str) -> dict[str, Callable[[], object]]:
    return {
        "publish": lambda: store.publish(folder),
        "current": store.current,
        "activate": lambda: store.activate(version),
        "rollback": store.rollback,
        "retire": lambda: store.retire(version),
        "history": store.history,
        "versions": store.versions,
        "manifest": lambda: store.manifest(version),
        "fetch": lambda: store.fetch(version, folder.parent / "local"),
        "append": lambda: store.append([[1]], 10),
        "entries": store.entries,
        "trim": lambda: store.trim("1-1"),
    }


def test_every_call_says_that_redis_is_away_and_works_when_it_is_back(
    own: RedisServer, opened: Callable[..., Store], tmp_path: Path
) -> None:
    store, folder = opened(), tmp_path / "built"
    version = make_snapshot(folder, 1)
    store.publish(folder)
    store.activate(version)
    store.wait(0.1)
    own.kill()
    for name, call in every_call(store, folder, version).items():
        begun = time.monotonic()
        with pytest.raises(StoreUnavailableError, match=str(own.port)):
            call()
        assert time.monotonic() - begun < 2.0, name
    own.start()
    assert (store.current(), store.versions(), store.history(), store.entries()) == (Current("", 0), [], [], [])
    with pytest.raises(UnknownVersionError):
        store.activate(version)
    with pytest.raises(UnknownVersionError):
        store.rollback()
    store.publish(folder)
    assert store.activate(version, 0) == Current(version, 1)
    assert contents(store.fetch(version, tmp_path / "local")) == contents(folder)


def test_opening_a_store_that_is_away_is_no_error(own: RedisServer, opened: Callable[..., Store]) -> None:
    own.kill()
    store = opened()
    with pytest.raises(StoreUnavailableError):
        store.current()
    own.start()
    assert store.current() == Current("", 0)


def test_a_redis_that_hangs_is_away_after_the_read_timeout(own: RedisServer, opened: Callable[..., Store]) -> None:
    store = opened(read_seconds=0.5)
    store.current()
    assert own.pid
    os.kill(own.pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            store.current()
        assert time.monotonic() - begun < 2.0
        assert not store.wait(0.3)
    finally:
        os.kill(own.pid, signal.SIGCONT)
    assert store.current() == Current("", 0)


def test_waiting_for_a_redis_that_is_away_neither_raises_nor_spins(
    own: RedisServer, opened: Callable[..., Store]
) -> None:
    store = opened()
    assert store.wait(1.0)  # heard from now on
    own.kill()
    begun, busy = time.monotonic(), time.process_time()
    assert not store.wait(1.0)
    assert time.monotonic() - begun >= 0.95
    assert time.process_time() - busy < 0.4
    restart = threading.Timer(0.2, own.start)
    restart.start()
    assert store.wait(20.0)  # it is back: look
    restart.join()
    with closing(open_store(own.url, SPACE)) as other:
        other.append([[1]], 10)
    assert store.wait(5.0)


def test_a_lost_subscription_is_repaired(own: RedisServer, opened: Callable[..., Store]) -> None:
    store = opened()
    store.wait(1.0)
    with own.client() as client:
        for _ in range(3):
            ask(client, "CLIENT", "KILL", "TYPE", "pubsub")
            assert store.wait(10.0)  # something may have been missed: look
    assert not store.wait(0.1)
    store.append([[1]], 10)
    assert store.wait(5.0)


def test_a_redis_that_dies_during_a_publish_lists_nothing(
    own: RedisServer, opened: Callable[..., Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, folder = opened(), tmp_path / "built"
    version = make_snapshot(folder, 1)
    write = store._write  # type: ignore[attr-defined]

    def dying(place: str, name: str, blocks: Iterator[bytes]) -> None:
        write(place, name, blocks)
        if name == FILES[0]:
            own.kill()

    monkeypatch.setattr(store, "_write", dying)
    with pytest.raises(StoreUnavailableError):
        store.publish(folder)
    own.start()
    assert store.versions() == []
    monkeypatch.undo()
    assert store.publish(folder) == version


def test_an_upload_that_a_restart_cut_in_two_is_refused(
    own: RedisServer, opened: Callable[..., Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, folder = opened(), tmp_path / "built"
    make_snapshot(folder, 1)
    write = store._write  # type: ignore[attr-defined]

    def restarting(place: str, name: str, blocks: Iterator[bytes]) -> None:
        write(place, name, blocks)
        if name == FILES[0]:
            own.kill()
            own.start()

    monkeypatch.setattr(store, "_write", restarting)
    with pytest.raises(StoreError):
        store.publish(folder)
    assert store.versions() == []
    with own.client() as client:
        assert ask(client, "KEYS", "*") == []


def test_a_publisher_that_is_killed_leaves_only_keys_that_expire(
    own: RedisServer, opened: Callable[..., Store], tmp_path: Path
) -> None:
    folder = tmp_path / "built"
    make_snapshot(folder, 1, size=300_000)
    worker = Worker()
    try:
        assert worker.receive() == "ready"
        options = {"chunk_bytes": 10, "upload_seconds": 3.0}
        job = {"url": own.url, "namespace": SPACE, "environment": {}, "options": options, "begin": 0.0}
        worker.send(job | {"verb": "publish", "arguments": [str(folder), 1]})
        with own.client() as client:
            wait_until(lambda: len(ask(client, "KEYS", "*upload*")) == 1, "an upload")
            worker.kill()
            (left,) = ask(client, "KEYS", "*")
            assert 0 < ask(client, "PTTL", left) <= 3000
            assert opened().versions() == []
            wait_until(lambda: ask(client, "KEYS", "*") == [], "an upload that expired")
    finally:
        worker.kill()


def test_all_keys_share_the_hash_tag_and_superseded_ones_expire_together(
    own: RedisServer, opened: Callable[..., Store], tmp_path: Path
) -> None:
    store = opened(grace_seconds=100.0)
    versions = []
    for number in range(2):
        make_snapshot(tmp_path / str(number), number)
        versions.append(store.publish(tmp_path / str(number)))
        store.activate(versions[-1])
    store.append([[1]], 10)
    with own.client() as client:
        names = {key.decode() for key in ask(client, "KEYS", "*")}
        assert all(name.startswith("spectra:{space}:") for name in names)
        lives = {name: ask(client, "PTTL", name) for name in names}
    mortal = [name for name, life in lives.items() if life != -1]
    assert mortal == [f"spectra:{{space}}:version:{versions[0]}"]  # all of its files are in this one key
    assert 0 < lives[mortal[0]] <= 100_000


def test_a_move_whose_answer_was_lost_is_not_a_conflict(
    own: RedisServer, opened: Callable[..., Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    make_snapshot(tmp_path / "built", 1)
    version = store.publish(tmp_path / "built")
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


def test_a_full_redis_refuses_a_snapshot_and_keeps_the_old_one(
    own: RedisServer, opened: Callable[..., Store], tmp_path: Path
) -> None:
    store = opened()
    make_snapshot(tmp_path / "1", 1)
    version = store.publish(tmp_path / "1")
    store.activate(version)
    make_snapshot(tmp_path / "2", 2, size=5_000_000)
    with own.client() as client:
        ask(client, "CONFIG", "SET", "maxmemory", ask(client, "INFO")["used_memory"] + 2_000_000)
        with pytest.raises(StoreError, match="maxmemory"):
            store.publish(tmp_path / "2")
        assert store.current() == Current(version, 1)
        assert [one.version for one in store.versions()] == [version]
        assert ask(client, "KEYS", "*upload*") == []


GARBAGE: dict[str, tuple[str | bytes | int, ...]] = {
    "current of another type": ("SET", KEYS.current, "text"),
    "a revision that is no number": ("HSET", KEYS.current, "version", "a" * 16, "revision", "many", "before", ""),
    "a version that is none": ("HSET", KEYS.current, "version", "../..", "revision", "1", "before", ""),
    "half a pointer": ("HSET", KEYS.current, "revision", "1"),
    "bytes that are no text": ("HSET", KEYS.current, "version", b"\xff\xfe", "revision", b"\xff", "before", b"\xff"),
    "history": ("RPUSH", KEYS.history, b"\xff not json"),
    "history of another form": ("RPUSH", KEYS.history, '{"revision": 1}'),
    "history of another type": ("SET", KEYS.history, "text"),
    "versions of another type": ("SET", KEYS.versions, "text"),
    "a manifest that is none": ("HSET", KEYS.version("a" * 16), "manifest", b"\xff"),
    "a manifest of nothing": ("HSET", KEYS.version("a" * 16), "manifest", "{}"),
    "a manifest of wrong types": ("HSET", KEYS.version("a" * 16), "manifest", '{"format": [], "format_version": {}}'),
    "a version of another type": ("SET", KEYS.version("a" * 16), "text"),
    "an entry without tokens": ("XADD", KEYS.log, "*", "other", "1"),
    "an entry of three bytes": ("XADD", KEYS.log, "*", "tokens", "abc"),
    "an entry of a large id": ("XADD", KEYS.log, "*", "tokens", b"\xff\xff\xff\xff"),
    "a log of another type": ("SET", KEYS.log, "text"),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_what_does_not_decode_is_an_error_of_the_store(server: RedisServer, tmp_path: Path, what: str) -> None:
    folder = tmp_path / "built"
    make_snapshot(folder, 1)
    with server.client() as client, closing(open_store(server.url, SPACE)) as store:
        ask(client, "FLUSHALL")
        ask(client, "ZADD", KEYS.versions, 1, "a" * 16)
        ask(client, *GARBAGE[what])
        failed = 0
        for call in every_call(store, folder, "a" * 16).values():
            try:
                call()
            except StoreError as error:
                failed += not isinstance(error, StoreUnavailableError)
        assert failed
        ask(client, "FLUSHALL")


def test_names_of_versions_that_cannot_be_are_not_listed(server: RedisServer) -> None:
    with server.client() as client, closing(open_store(server.url, SPACE)) as store:
        ask(client, "FLUSHALL")
        ask(client, "ZADD", KEYS.versions, 1, "../..", 2, b"\xff", 3, "a" * 16)
        assert store.versions() == []
        assert ask(client, "ZRANGE", KEYS.versions, 0, -1) == [b"../..", b"\xff"]  # what expired is not listed any more
        ask(client, "FLUSHALL")
