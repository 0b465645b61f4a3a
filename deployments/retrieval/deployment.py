"""The retrieval service as a Serve deployment: one replica; its threads follow the store, its event loop answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

import ray

from deployments.credentials import check_credentials
from deployments.observability.logs import configure
from deployments.options import RetrievalOptions
from deployments.serve_calls import check_single_replica
from engine.kept_files import in_cache
from retrieval_store.service.manifest_feed import Known, ManifestChanges
from retrieval_store.service.namespace_worker import ServiceContext
from retrieval_store.service.service import RetrievalService
from retrieval_store.snapshots.cache import NodeCache
from retrieval_store.stores.base import Store
from retrieval_store.stores.open import open_store, shown
from retrieval_store.stores.records import StoreOptions

IN_MEMORY = "memory://retrieval"  # URL for a service without a store
LONGEST_S = 30.0  # upper limit of ``timeout``


class RetrievalDeployment:
    """Wraps ``RetrievalService``, whose docstring says what happens when the store is down.

    Args:
        options: store, namespaces and learning.
    """

    async def __init__(self, options: RetrievalOptions) -> None:  # type: ignore[misc]  # Serve awaits async constructors
        configure(options.logs, "Retrieval")
        check_credentials(options.credentials, ray.util.get_node_ip_address())
        check_single_replica("one replica follows the store for all readers")
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._service = RetrievalService(_service_context(options), options.namespace, options.live, self._on_change)
        self._service.start()

    def _on_change(self) -> None:
        """Wake the waiting calls; thread-safe."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the replica is shutting down
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def changes(self, known: Known, timeout: float) -> ManifestChanges:
        """Changes since ``known``; waits up to ``timeout`` seconds for one. See ``ManifestSource``."""
        deadline = time.monotonic() + min(timeout, LONGEST_S)
        while True:
            changed = self._changed
            answer = self._service.changes(known)
            remaining = deadline - time.monotonic()
            if answer.offers or remaining <= 0:
                return answer
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), remaining)

    async def read(self, namespace: str, version: str, file: str, offset: int) -> bytes:
        return await asyncio.to_thread(self._service.read, namespace, version, file, offset)

    async def learn(self, namespace: str, texts: Sequence[Sequence[int]]) -> int:
        return self._service.learn(namespace, texts)

    def __del__(self) -> None:
        """Serve calls this when it stops the replica."""
        service: RetrievalService | None = getattr(self, "_service", None)
        if service is not None:
            service.stop()


def _service_context(options: RetrievalOptions) -> ServiceContext:
    store_options = StoreOptions(grace_seconds=options.grace, tokenizer_hash=options.target.tokenizer_hash)

    def open_one(namespace: str) -> Store:
        return open_store(options.store or IN_MEMORY, namespace, store_options)

    return ServiceContext(
        open_store=open_one,
        cache=NodeCache(in_cache(options.cache), shown(options.store) if options.store else ""),
        target=options.target,
        poll=options.poll,
        live=options.learning,
    )
