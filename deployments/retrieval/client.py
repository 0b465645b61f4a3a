"""The retrieval service as its clients see it: a ``ManifestSource`` over a Serve handle, one reader per process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from ray.serve.handle import DeploymentHandle

from deployments.options import RetrievalOptions
from deployments.retrieval.metrics import RetrievalMetrics
from retrieval_store.index.index import SHARED, Library
from retrieval_store.service.manifest_feed import Known, ManifestChanges
from retrieval_store.service.reader import Reader
from retrieval_store.service.sender import OutputSender
from speculators.method import SpeculatorOptions

ANSWER_S = 10.0  # timeout of a call, in addition to the time it may wait in the service


class ServiceClient:
    """Implements ``ManifestSource``; thread-safe.

    Calls raise TimeoutError without an answer in time, and Serve's error when the replica dies. They run in an event
    loop of the client's own: a handle belongs to one loop, and the process's main loop must not be delayed.
    """

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="retrieval-client", daemon=True).start()

    def changes(self, known: Known, timeout: float) -> ManifestChanges:
        answer: ManifestChanges = self._call("changes", timeout, dict(known), timeout)
        return answer

    def read(self, namespace: str, version: str, file: str, offset: int) -> bytes:
        chunk: bytes = self._call("read", 0.0, namespace, version, file, offset)
        return chunk

    def learn(self, namespace: str, texts: Sequence[Sequence[int]]) -> int:
        n_lost: int = self._call("learn", 0.0, namespace, list(texts))
        return n_lost

    def _call(self, method: str, waits: float, *arguments: Any) -> Any:
        calling = self._call_async(method, arguments, waits + ANSWER_S)
        return asyncio.run_coroutine_threadsafe(calling, self._loop).result()

    async def _call_async(self, method: str, arguments: tuple[Any, ...], timeout: float) -> Any:
        response = self._handle.options(method_name=method).remote(*arguments)
        try:
            async with asyncio.timeout(timeout):
                return await response
        except BaseException:
            response.cancel()  # a replica that comes up later must not run it
            raise


@dataclass(frozen=True, slots=True)
class ReaderFactory:
    """Returns the process's reader, made at the first call; pickled to the processes that draft."""

    handle: DeploymentHandle
    shared: str
    tokenizer_hash: str
    fixed: Callable[[], Library] | None = None  # a library that all namespaces use in addition to the snapshots

    def __call__(self) -> Reader:
        with _lock:
            if not _readers:
                fixed = () if self.fixed is None else self.fixed().of(SHARED)
                reader = Reader(process_client(self.handle), self.shared, self.tokenizer_hash, fixed)
                reader.start()
                _readers.append(reader)
            return _readers[0]


# One of each is enough for a process: it drafts for one application.
_clients: list[ServiceClient] = []
_readers: list[Reader] = []
_lock = threading.RLock()


def process_client(handle: DeploymentHandle) -> ServiceClient:
    """The process's client of the service, made at the first call."""
    with _lock:
        if not _clients:
            _clients.append(ServiceClient(handle))
        return _clients[0]


class RouterRetrieval:
    """Retrieval in the router: the reader it drafts from, the sender of outputs to learn from, and their metrics.

    Follows the service as soon as it is constructed, and never waits for it.

    Args:
        handle: of the retrieval deployment.
        options: of that deployment.
        model: label of metrics.
        speculators: settings of the methods; their own library is used in addition to the service's snapshots.
    """

    def __init__(
        self, handle: DeploymentHandle, options: RetrievalOptions, model: str, speculators: SpeculatorOptions
    ) -> None:
        factory = ReaderFactory(handle, options.namespace, options.target.tokenizer_hash, speculators.retrieval)
        self.speculators = replace(speculators, retrieval=factory)
        self._sender = OutputSender(process_client(handle), options.live) if options.live else None
        if self._sender is not None:
            self._sender.start()
        named = dict.fromkeys([options.namespace, *options.live])
        self._metrics = RetrievalMetrics(model, factory(), named, self._sender)
        self._registry = CollectorRegistry()
        self._registry.register(self._metrics)

    @property
    def learn(self) -> Callable[[str, Sequence[int]], None] | None:
        """Function that takes a namespace and an output to learn from; None if no namespace learns."""
        return None if self._sender is None else self._sender.put

    def detail(self) -> dict[str, str | int | float | bool]:
        """Details for health checks."""
        return self._metrics.detail()

    def metrics_text(self) -> str:
        """Prometheus exposition text."""
        return generate_latest(self._registry).decode()
