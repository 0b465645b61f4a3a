"""The mixed models of requests: a request's own, or one that requests of a scope share."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from engine.protocol import RequestView
from engine.tree import FloatArray, IntArray
from speculators.successors.candidates import make_candidates
from speculators.successors.config import CORPUS, TARGET, TEXT, SuccessorConfig
from speculators.successors.corpora import make_lookup
from speculators.successors.mix import Model
from speculators.successors.table import NONE, Table, empty_table, make_table, table_size
from speculators.successors.trusts import first_trusts
from speculators.successors.vocabulary import VocabularyRows
from speculators.tenant_state import TenantState

MOST_IDLE = 16  # tables of a size that are kept for the next request: 6 MB each at most, text and target together


class Models:
    """Makes models, and keeps those that are shared. All of them use the same scratch space, one at a time.

    Tables of requests that ended serve the next ones: the first write to every page of new memory takes longer than
    all that is learnt of a prompt.

    Args:
        config: settings.
        sources: the parts that a model has; the others know nothing.
        vocabulary: the target's rows behind every token, if they were read; for the target's part.
    """

    def __init__(
        self, config: SuccessorConfig, sources: tuple[str, ...], vocabulary: VocabularyRows | None = None
    ) -> None:
        self._config = config
        self._text_orders = config.text_orders if TEXT in sources else ()
        self._target_orders = config.target_orders if TARGET in sources else ()
        self._vocabulary = VocabularyRows.none()
        if vocabulary is not None and TARGET in sources:
            # Copied: what came over a wire is read-only, to Numba another type, for which it would compile anew.
            self._vocabulary = vocabulary.copy()
        self._shared: TenantState[TenantState[Model]] = TenantState()  # scope -> prompt, or "" for all -> its model
        self._idle: dict[tuple[int, ...], list[Table]] = {}  # rows, width and orders -> tables
        self._lookup = make_lookup(config.corpus_orders if CORPUS in sources else ())
        self._candidates = make_candidates()

    def of(self, view: RequestView) -> Model:
        """The request's own model, its scope's, or its prompt's in its scope."""
        config = self._config
        if not config.shared:
            return self.new(len(view.context) + view.request.params.max_tokens)
        kept = self._shared.of(view.request.scope, lambda: TenantState(max(config.prompts, 1)))
        prompt = np.array(view.request.prompt, np.int32).tobytes() if config.prompts else b""
        model = kept.of(blake2b(prompt, digest_size=16).hexdigest(), lambda: self.new(config.target_rows))
        recent_ids, recent_weights = self._recent()  # a request's own: others that run beside it write of other things
        return model._replace(recent_ids=recent_ids, recent_weights=recent_weights)

    def end(self, model: Model) -> None:
        """A request has ended: its own model is another's."""
        if self._config.shared:
            return
        for table in (model.text, model.target):
            idle = self._idle.setdefault((*table.ids.shape, *table.orders.tolist()), [])
            if len(idle) < MOST_IDLE:
                idle.append(empty_table(table))

    def _table(self, n_rows: int, width: int, orders: tuple[int, ...]) -> Table:
        idle = self._idle.get((table_size(n_rows), width, *orders))
        return idle.pop() if idle else make_table(n_rows, width, orders)

    def new(self, n_tokens: int) -> Model:
        """An empty model with room for a text of ``n_tokens``."""
        config = self._config
        n_text, n_target = 2 * n_tokens * len(self._text_orders), 64 * n_tokens * len(self._target_orders)
        recent_ids, recent_weights = self._recent()
        return Model(
            text=self._table(min(config.text_rows, n_text), config.text_width, self._text_orders),
            target=self._table(min(config.target_rows, n_target), config.top_k, self._target_orders),
            vocabulary=self._vocabulary,
            lookup=self._lookup,
            trusts=first_trusts(),
            recent_ids=recent_ids,
            recent_weights=recent_weights,
            recent_trust=np.zeros(1, np.float32),
            candidates=self._candidates,
        )

    def _recent(self) -> tuple[IntArray, FloatArray]:
        """No recent tokens yet: ids and weights."""
        return np.full(self._config.recent, NONE, np.int32), np.zeros(self._config.recent, np.float32)
