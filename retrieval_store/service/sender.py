"""Outputs on their way from the router to the service: queued at once, sent by a thread, dropped when too many."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence

from retrieval_store.service.live_texts import SHORTEST, Pending
from retrieval_store.service.manifest_feed import ManifestSource

logger = logging.getLogger(__name__)

GATHER_S = 0.2  # outputs of this period are sent together


class OutputSender:
    """Sends outputs that any thread ``put`` to the service; ignores those of namespaces not in ``live``."""

    def __init__(self, source: ManifestSource, live: Collection[str]) -> None:
        self._source = source
        self._pending = {namespace: Pending() for namespace in live}
        self._n_lost = 0
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="live-sender", daemon=True)

    @property
    def n_dropped(self) -> int:
        """Number of outputs that were lost: the service was away, or there were too many."""
        return self._n_lost + sum(pending.dropped for pending in self._pending.values())

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; outputs that wait are not sent."""
        self._stopped = True
        self._wake.set()
        self._thread.join(5.0)

    def put(self, namespace: str, tokens: Sequence[int]) -> None:
        """Queue an output; returns at once and raises nothing."""
        pending = self._pending.get(namespace)
        if pending is not None and len(tokens) >= SHORTEST:
            pending.put([tokens])
            self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            if self._stopped:
                return
            time.sleep(GATHER_S)
            self._wake.clear()
            for namespace, pending in self._pending.items():
                if texts := pending.take():
                    self._send(namespace, texts)

    def _send(self, namespace: str, texts: Sequence[Sequence[int]]) -> None:
        try:
            self._n_lost += self._source.learn(namespace, texts)
        except Exception as error:
            self._n_lost += len(texts)
            logger.warning("%d outputs of namespace %r are lost to learning: %s", len(texts), namespace, error)
