"""A real store of every kind. Servers start once, when the first test needs them; every test has its own namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
import trustme
from redis.cluster import RedisCluster

from tests.support.redis_server import HOST, RedisServer, Sentinel, ask, cluster, sentinel
from tests.support.snapshot_folders import make_snapshot
from tests.support.store_kinds import Place, Worker, new_namespace
from tests.support.tls_relay import TlsRelay

KINDS = ("memory", "directory", "redis", "redis-tls", "redis-sentinel", "redis-cluster")
USER, SECRET = "spectra", "s3cret-of-the-store"
# The rule of docs/stores.md.
ACL = (
    "resetkeys ~spectra:* resetchannels &spectra:* -@all +hget +hmget +exists +eval +unlink +zrange +lrange +xrange "
    "+xtrim +subscribe +select +ping +hset +pexpire +pttl +persist +hexists +rename +zadd +zrem +zscore "
    "+zrevrange +rpush +ltrim +xadd +publish"
)

CLUSTER_ACL = "+cluster|slots +command"  # in addition
SENTINEL_ACL = "resetkeys resetchannels -@all +sentinel|masters"  # of a user of the Sentinels


@pytest.fixture(scope="session")
def workers() -> Iterator[Callable[[], list[Worker]]]:
    """Three processes, started together when somebody asks for them."""
    started: list[Worker] = []

    def get() -> list[Worker]:
        if not started:
            started.extend(Worker() for _ in range(3))
            assert [worker.receive() for worker in started] == ["ready"] * 3
        return started

    yield get
    for worker in started:
        worker.kill()


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    """A plain Redis server."""
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RedisServer, TlsRelay, Path]]:
    """A server behind TLS, where only one user may do anything but for the tests' own one; and its CA's certificate."""
    with RedisServer() as running, TlsRelay(running.port) as relay:
        with running.client() as client:
            ask(client, "ACL", "SETUSER", USER, "on", f">{SECRET}", *ACL.split())
            ask(client, "ACL", "SETUSER", "admin", "on", ">admin", "~*", "&*", "+@all")
            ask(client, "ACL", "SETUSER", "default", "off")
        yield running, relay, relay.write_ca(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="session")
def watched() -> Iterator[Sentinel]:
    """A primary that a Sentinel watches."""
    with sentinel() as running:
        yield running


@pytest.fixture(scope="session")
def nodes() -> Iterator[list[RedisServer]]:
    """A Cluster."""
    with cluster() as running:
        yield running


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """Signs certificates."""
    return trustme.CA()


@pytest.fixture
def relays(authority: trustme.CA) -> Iterator[Callable[[int], int]]:
    """The port of a new relay in front of a port."""
    with ExitStack() as stack:
        yield lambda port: stack.enter_context(TlsRelay(port, authority)).port


@pytest.fixture(params=KINDS)
def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: Callable[[], list[Worker]],
) -> Iterator[Place]:
    """A store of each kind."""
    made = _place(request, tmp_path)
    made.workers = workers
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    yield made
    for store in made.opened:
        store.close()


def _place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    kind, namespace = request.param, new_namespace()
    if kind == "memory":
        return Place(kind, "memory://tests", namespace)
    if kind == "directory":
        return Place(kind, str(tmp_path / "store"), namespace)
    if kind == "redis":
        plain: RedisServer = request.getfixturevalue("server")
        return Place(kind, plain.url, namespace, connect=plain.client)
    if kind == "redis-tls":
        guarded, relay, ca = request.getfixturevalue("guarded")
        login = {"SPECTRA_REDIS_USERNAME": USER, "SPECTRA_REDIS_PASSWORD": SECRET}
        url = f"rediss://localhost:{relay.port}/0?ca={ca}"
        return Place(kind, url, namespace, login, connect=lambda: guarded.client(username="admin", password="admin"))
    if kind == "redis-sentinel":
        watched: Sentinel = request.getfixturevalue("watched")
        return Place(kind, watched.url, namespace, connect=watched.primary.client)
    return _cluster_place(namespace, request.getfixturevalue("nodes"))


def _cluster_place(namespace: str, nodes: list[RedisServer]) -> Place:
    url = "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in nodes)
    return Place("redis-cluster", url, namespace, connect=lambda: _cluster_client(nodes[0]))


def _cluster_client(node: RedisServer) -> redis.RedisCluster:
    return RedisCluster(host=HOST, port=node.port)


@pytest.fixture
def snapshot(tmp_path: Path) -> Callable[[int], Path]:
    """A folder with the snapshot of this number."""

    def make(number: int) -> Path:
        folder = tmp_path / "built" / str(number)
        if not folder.exists():
            make_snapshot(folder, number)
        return folder

    return make
