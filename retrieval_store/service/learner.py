"""Live learning of one namespace: outputs go into the store's log, the log's newest texts into a delta.

Drafts use the delta in addition to the base, the current snapshot. All servers that share the store read the same log,
so each of them learns from all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retrieval_store.errors import ConflictError, StoreError
from retrieval_store.service.backoff import IDLE_SHARE, Backoff, log_problem
from retrieval_store.service.compaction import TargetVocabulary, compact, log, trim
from retrieval_store.service.live_texts import LiveTexts, Pending
from retrieval_store.service.manifest_feed import OfferedSnapshot
from retrieval_store.service.watcher import LocalSnapshot
from retrieval_store.snapshots.cache import NodeCache
from retrieval_store.snapshots.snapshot import Description
from retrieval_store.snapshots.snapshot_writer import write_snapshot
from retrieval_store.stores.base import Store
from retrieval_store.stores.live_text import parse_id

logger = logging.getLogger(__name__)

LOG_ENTRIES = 20_000  # most texts in the log, compacted ones in their grace period included
LIVE_SHARE = 10  # most live texts in a snapshot, as a multiple of what one compaction adds
AGAIN_S = 30.0  # least time between two compactions
TRIM_S = 30.0  # time between two checks whether the log can be trimmed


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """How a namespace learns; a value out of range raises ValueError."""

    tokens: int = 200_000  # of a delta; the newest texts
    interval: float = 5.0  # least seconds between two deltas
    compact_tokens: int = 1_000_000  # of the log; once there are more, they become part of a new snapshot

    def __post_init__(self) -> None:
        if min(self.tokens, self.compact_tokens) < 1:
            raise ValueError(f"tokens {self.tokens} and compact_tokens {self.compact_tokens} must be at least 1")
        if self.interval <= 0:
            raise ValueError(f"interval is {self.interval}; it must be above 0 seconds")


class Learner:
    """Learns one namespace, in the thread that calls ``step``; ``base`` returns the snapshot that is served now."""

    def __init__(
        self,
        store: Store,
        cache: NodeCache,
        target: TargetVocabulary,
        options: LiveOptions,
        base: Callable[[], LocalSnapshot | None],
    ) -> None:
        self._store = store
        self._snapshots = cache.snapshots(store.namespace)
        self._deltas = cache.deltas(store.namespace)
        self._target = target
        self._options = options
        self._base = base
        self._texts = LiveTexts(options.tokens, target.vocab_size)
        self._pending = Pending()
        self._n_refused = 0  # texts
        self._folded = ""  # id of the last entry in the base
        self._seen = ""  # id of the last entry that was read
        self._counted = ""  # id of the last entry that a rollback put back into the log
        self._n_logged = 0  # tokens of the log that are not in the base and were not put back by a rollback
        self._is_new = False  # something was read, or the base has changed, since the last delta
        self._steps = (
            Backoff("add outputs to the log", self._append),
            Backoff("read the log", self._read),
            Backoff("write a delta", self._fold),
            Backoff("write a snapshot of the log", self._compact),
            Backoff("trim the log", self._trim),
        )
        self.problem = ""  # why learning fails; "": it does not
        self.delta: OfferedSnapshot | None = None
        self.n_texts = 0  # appended
        self.n_folds = 0
        self.n_compactions = 0

    @property
    def n_dropped(self) -> int:
        """Number of texts that were lost on the way to the log."""
        return self._n_refused + self._pending.dropped

    def learn(self, texts: Sequence[Sequence[int]]) -> None:
        """Take outputs; thread-safe."""
        self._pending.put(texts)

    def step(self) -> bool:
        """Append, read, write a delta, compact and trim, each if it is due; return whether the delta changed.

        Raises nothing.
        """
        before = self.delta
        for step in self._steps:  # each by itself: a server without the right to write still learns from others
            step()
        problem = "; ".join(step.problem for step in self._steps if step.problem)
        self.problem = log_problem(f"learning of namespace {self._store.namespace!r}", self.problem, problem)
        if self.delta is not None:
            self._deltas.touch([self.delta.version])
        return self.delta is not before

    def _append(self) -> float:  # like all steps, returns the seconds until it may be due again
        texts = self._pending.take()
        if not texts:
            return 0.0
        try:
            self._store.append(texts, LOG_ENTRIES)
        except StoreError:
            self._pending.put_back(texts)
            raise
        except ValueError:  # the log refuses one of the texts
            self._n_refused += len(texts)
            raise
        self.n_texts += len(texts)
        return 0.0

    def _read(self) -> float:
        """Read new texts; all that are not in the base if the base has changed."""
        base = self._base()
        folded = base.manifest.about.folded if base else ""
        if folded != self._folded:
            self._texts.clear()
            # Texts of a compaction that was rolled back are live again. They do not count: compacting them would undo
            # the rollback.
            self._counted = self._seen if self._at(folded) < self._at(self._folded) else ""
            self._folded = self._seen = folded
            self._n_logged, self._is_new = 0, True
        for entry in log(self._store, self._seen):
            self._seen = entry.id
            if self._at(entry.id) > self._at(self._counted):
                self._n_logged += len(entry.tokens)
            self._is_new |= self._texts.add(entry.tokens)
        return 0.0

    def _at(self, name: str) -> tuple[int, int]:
        return parse_id(name, self._store.namespace)

    def _fold(self) -> float:
        if not self._is_new:
            return 0.0
        began = time.monotonic()
        self.delta = self._write_delta() if len(self._texts) else None
        self._is_new = False
        self._deltas.sweep([self.delta.version] if self.delta else [])
        self.n_folds += 1
        return max(self._options.interval, IDLE_SHARE * (time.monotonic() - began))

    def _write_delta(self) -> OfferedSnapshot:
        target = self._target
        about = Description(tokenizer_hash=target.tokenizer_hash, vocab_size=target.vocab_size, folded=self._seen)
        with self._deltas.scratch() as scratch:
            manifest = write_snapshot(self._texts.documents(), scratch, about)
            place = self._deltas.adopt(scratch, manifest.version)
        return OfferedSnapshot(manifest.version, str(place), manifest.tokens)

    def _compact(self) -> float:
        if self._n_logged < self._options.compact_tokens:
            return 0.0
        limit = LIVE_SHARE * self._options.compact_tokens
        try:
            if compact(self._store, self._base(), self._snapshots, self._target, limit):
                self.n_compactions += 1
                self._n_logged = 0
        except ConflictError as error:
            logger.info("namespace %r: %s; its live texts are compacted later", self._store.namespace, error)
        return AGAIN_S

    def _trim(self) -> float:
        trim(self._store)
        return TRIM_S
