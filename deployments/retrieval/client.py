"""Client of the retrieval service: a ``ManifestSource`` over a Serve handle, and one reader per process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ray.serve.handle import DeploymentHandle

from retrieval_store.index.index import SHARED, Library
from retrieval_store.service.manifest_feed import Known, ManifestChanges
from retrieval_store.service.reader import Reader

ANSWER_S = 10.0  # beyond the time a call may wait at the service; after it the service counts as down


class ServiceClient:
    """Implements ``ManifestSource``; thread-safe.

    Calls run in an event loop of the client's own: a handle belongs to one loop (always so with Serve's
    ``RAY_SERVE_THROUGHPUT_OPTIMIZED``), and the process's main loop must not be kept from its steps.
    """

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="retrieval-client", daemon=True).start()

    def changes(self, known: Known, timeout: float) -> ManifestChanges:
        """See ``ManifestSource.changes``."""
        answer: ManifestChanges = self._call("changes", timeout, dict(known), timeout)
        return answer

    def read(self, namespace: str, version: str, file: str, offset: int) -> bytes:
        """See ``ManifestSource.read``."""
        chunk: bytes = self._call("read", 0.0, namespace, version, file, offset)
        return chunk

    def learn(self, namespace: str, texts: Sequence[Sequence[int]]) -> int:
        """See ``ManifestSource.learn``."""
        lost: int = self._call("learn", 0.0, namespace, list(texts))
        return lost

    def _call(self, method: str, patience: float, *arguments: Any) -> Any:
        """Raises TimeoutError without an answer in time, and Serve's error when the replica dies."""
        asking = self._ask(method, arguments, patience + ANSWER_S)
        return asyncio.run_coroutine_threadsafe(asking, self._loop).result()

    async def _ask(self, method: str, arguments: tuple[Any, ...], timeout: float) -> Any:
        response = self._handle.options(method_name=method).remote(*arguments)
        try:
            async with asyncio.timeout(timeout):
                return await response
        except BaseException:
            response.cancel()  # a replica that comes up later must not run it
            raise


@dataclass(frozen=True, slots=True)
class ReaderFactory:
    """Makes the process's reader at the first call; pickled to the processes that draft."""

    handle: DeploymentHandle
    shared: str
    tokenizer_hash: str
    fixed: Callable[[], Library] | None = None  # looked up by all namespaces, beside the service's snapshots

    def __call__(self) -> Reader:
        """The process's reader."""
        return process_reader(self)

    def make(self) -> Reader:
        """A new reader that follows the service."""
        fixed = () if self.fixed is None else self.fixed().of(SHARED)
        reader = Reader(process_client(self.handle), self.shared, self.tokenizer_hash, fixed)
        reader.start()
        return reader


# One of each is enough for a process: it drafts for one application.
_clients: list[ServiceClient] = []
_readers: list[Reader] = []
_lock = threading.RLock()


def process_client(handle: DeploymentHandle) -> ServiceClient:
    """This process's client of the service."""
    with _lock:
        if not _clients:
            _clients.append(ServiceClient(handle))
        return _clients[0]


def process_reader(factory: ReaderFactory) -> Reader:
    """This process's reader."""
    with _lock:
        if not _readers:
            _readers.append(factory.make())
        return _readers[0]
