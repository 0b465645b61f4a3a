"""The mixed models of requests: a request's own, or one that requests of a scope share."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from engine.protocol import RequestView
from retrieval_store.index.addresses import Addresses, addresses_of
from speculators.successors.candidates import make_candidates
from speculators.successors.config import CORPUS, TARGET, TEXT, SuccessorConfig
from speculators.successors.corpora import make_lookup
from speculators.successors.mix import Model
from speculators.successors.table import NONE, empty_table, make_table, table_size
from speculators.successors.trusts import first_trusts
from speculators.successors.vocabulary import VocabularyRows
from speculators.tenant_state import TenantState

MOST_IDLE = 16  # models of a size that are kept for the next request: 6.3 MB each at most


class Addressed(NamedTuple):
    """A model and, for compiled code, where its arrays lie."""

    model: Model
    addresses: Addresses


class Models:
    """Makes models, and keeps those that are shared. All of them use the same scratch space, one at a time.

    Models of requests that ended serve the next ones, emptied: the first write to every page of new memory takes longer
    than all that is learnt of a prompt, and so does finding out where the arrays lie.

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
        self._idle: dict[tuple[int, int], list[Addressed]] = {}  # by rows of text and target
        self._trusts = first_trusts()
        self._lookup = make_lookup(config.corpus_orders if CORPUS in sources else ())
        self._candidates = make_candidates()

    def of(self, view: RequestView) -> Addressed:
        """The request's own model, its scope's, or its prompt's in its scope."""
        config = self._config
        if not config.shared:
            n_tokens = len(view.context) + view.request.params.max_tokens
            text_rows, target_rows = self._rows(n_tokens)
            idle = self._idle.get((table_size(text_rows), table_size(target_rows)))
            return idle.pop() if idle else self.addressed(self.new(n_tokens))
        kept = self._shared.of(view.request.scope, lambda: TenantState(max(config.prompts, 1)))
        prompt = np.array(view.request.prompt, np.int32).tobytes() if config.prompts else b""
        model = kept.of(blake2b(prompt, digest_size=16).hexdigest(), lambda: self.new(config.target_rows))
        recent_ids, recent_weights = model.recent_ids.copy(), model.recent_weights.copy()  # as they were made: none
        return self.addressed(model._replace(recent_ids=recent_ids, recent_weights=recent_weights))

    @staticmethod
    def addressed(model: Model) -> Addressed:
        """The model with its addresses."""
        return Addressed(model, addresses_of(model, EXAMPLE))

    def end(self, addressed: Addressed) -> None:
        """A request has ended: its own model is another's."""
        if self._config.shared:
            return
        model = addressed.model
        idle = self._idle.setdefault((len(model.text.keys), len(model.target.keys)), [])
        if len(idle) == MOST_IDLE:
            return
        empty_table(model.text)
        empty_table(model.target)
        model.recent_ids.fill(NONE)
        for now, first in zip(model.trusts, self._trusts, strict=True):
            now[:] = first
        looks_up = model.lookup is not self._lookup  # and would keep those texts from being freed
        idle.append(self.addressed(model._replace(lookup=self._lookup)) if looks_up else addressed)

    def _rows(self, n_tokens: int) -> tuple[int, int]:
        """About how many rows tables for a text of ``n_tokens`` have: counts, probabilities."""
        config = self._config
        n_text, n_target = 2 * n_tokens * len(self._text_orders), 64 * n_tokens * len(self._target_orders)
        return min(config.text_rows, n_text), min(config.target_rows, n_target)

    def new(self, n_tokens: int) -> Model:
        """An empty model with room for a text of ``n_tokens``."""
        config = self._config
        text_rows, target_rows = self._rows(n_tokens)
        return Model(
            text=make_table(text_rows, config.text_width, self._text_orders),
            target=make_table(target_rows, config.top_k, self._target_orders),
            vocabulary=self._vocabulary,
            lookup=self._lookup,
            trusts=first_trusts(),
            recent_ids=np.full(config.recent, NONE, np.int32),
            recent_weights=np.zeros(config.recent, np.float32),
            recent_trust=np.zeros(1, np.float32),
            candidates=self._candidates,
        )


EXAMPLE = Models(SuccessorConfig(), ()).new(1)  # of what addresses stand for
