"""A store of every kind. Servers start once, when a test first needs them; every test has its own namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import pytest
import trustme
from redis.cluster import RedisCluster

from tests.retrieval_store.stores.store_kinds import StoreKind
from tests.retrieval_store.stores.tls_relay import TlsRelay
from tests.support.redis_server import HOST, RedisServer, ask, cluster, sentinel
from tests.support.snapshot_folders import make_snapshot

KINDS = (
    "memory",
    "directory",
    pytest.param("redis", marks=pytest.mark.cluster),
    *(pytest.param(kind, marks=pytest.mark.matrix) for kind in ("redis-tls", "redis-sentinel", "redis-cluster")),
)
USER, SECRET = "spectra", "s3cret-of-the-store"
# The rule of docs/explanation/retrieval.md.
ACL = (
    "resetkeys ~spectra:* resetchannels &spectra:* -@all +hget +hmget +exists +eval +unlink +zrange +lrange +xrange "
    "+xtrim +subscribe +select +ping +hset +pexpire +pttl +persist +hexists +rename +zadd +zrem +zscore "
    "+zrevrange +rpush +ltrim +xadd +publish"
)
CLUSTER_ACL = "+cluster|slots +command"  # in addition
SENTINEL_ACL = "resetkeys resetchannels -@all +sentinel|masters"  # of a user of the Sentinels
LOGIN = {"SPECTRA_REDIS_USERNAME": USER, "SPECTRA_REDIS_PASSWORD": SECRET}


@pytest.fixture(scope="session")
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(3, get_context("spawn")) as pool:
        yield pool


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    """A plain Redis server."""
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def ca(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The authority's certificate."""
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


@pytest.fixture(scope="session")
def relays(authority: trustme.CA) -> Iterator[Callable[[int], int]]:
    """Returns the port of the TLS relay to a port."""
    with ExitStack() as stack:
        yield cache(lambda port: stack.enter_context(TlsRelay(port, authority)).port)


def restrict(server: RedisServer, *more: str) -> None:
    """Add the documented user, and an admin for the tests."""
    with server.client() as client:
        ask(client, "ACL", "SETUSER", USER, "on", f">{SECRET}", *ACL.split(), *more)
        ask(client, "ACL", "SETUSER", "admin", "on", ">admin", "~*", "&*", "+@all")


@pytest.fixture(scope="session")
def tls_place(authority: trustme.CA, ca: Path) -> Iterator[tuple[StoreKind, TlsRelay]]:
    """A server after a TLS relay, whose default user may do nothing."""
    with RedisServer() as running, TlsRelay(running.port, authority) as relay:
        restrict(running)
        with running.client() as client:
            ask(client, "ACL", "SETUSER", "default", "off")
        url = f"rediss://localhost:{relay.port}/0?ca={ca}"
        yield StoreKind("redis-tls", url, LOGIN, lambda: running.client(username="admin", password="admin")), relay


@pytest.fixture(scope="session")
def sentinel_place(relays: Callable[[int], int], ca: Path) -> Iterator[StoreKind]:
    """With TLS and users everywhere."""
    with sentinel(password="of the sentinel", seen_port=relays) as running:
        for server in (running.primary, running.replica):
            restrict(server)
        with running.sentinel.client(password="of the sentinel") as client:
            ask(client, "ACL", "SETUSER", "watcher", "on", ">of the watcher", *SENTINEL_ACL.split())
        url = f"rediss+sentinel://{HOST}:{relays(running.sentinel.port)}/spectra/0?ca={ca}"
        watcher = {"USERNAME": "watcher", "PASSWORD": "of the watcher"}
        login = {f"SPECTRA_REDIS_SENTINEL_{name}": value for name, value in watcher.items()}
        yield StoreKind("redis-sentinel", url, LOGIN | login, running.primary.client)


@pytest.fixture(scope="session")
def cluster_place(relays: Callable[[int], int], ca: Path) -> Iterator[StoreKind]:
    """With TLS and users."""
    with cluster(seen_port=relays) as nodes:
        for node in nodes:
            restrict(node, *CLUSTER_ACL.split())
        url = "rediss+cluster://" + ",".join(f"{HOST}:{relays(node.port)}" for node in nodes) + f"?ca={ca}"
        yield StoreKind("redis-cluster", url, LOGIN, lambda: RedisCluster(host=HOST, port=nodes[0].port))


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreKind]:
    """A store of each kind, with an empty namespace."""
    found = _place(request, tmp_path)
    made = StoreKind(found.kind, found.url, found.environment, found.connect)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    if made.kind.startswith("redis"):
        made.pool = request.getfixturevalue("processes")
        yield made
    else:
        with ThreadPoolExecutor(3) as made.pool:
            yield made
    for store in made.opened:
        store.close()


def _place(request: pytest.FixtureRequest, tmp_path: Path) -> StoreKind:
    kind: str = request.param
    if kind == "memory":
        return StoreKind(kind, "memory://tests")
    if kind == "directory":
        return StoreKind(kind, str(tmp_path / "store"))
    if kind == "redis":
        plain: RedisServer = request.getfixturevalue("server")
        return StoreKind(kind, plain.url, connect=plain.client)
    if kind == "redis-tls":
        made: StoreKind = request.getfixturevalue("tls_place")[0]
    else:
        made = request.getfixturevalue(kind.removeprefix("redis-") + "_place")
    return made


@pytest.fixture
def snapshot(tmp_path: Path) -> Callable[[int], Path]:
    """Returns the folder of the snapshot with this number."""

    def make(number: int) -> Path:
        folder = tmp_path / "built" / str(number)
        if not folder.exists():
            make_snapshot(folder, number)
        return folder

    return make
