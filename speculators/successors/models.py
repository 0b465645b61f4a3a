"""The mixed models of requests: each request has its own, or the requests of a scope share one."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from engine.protocol import RequestView
from retrieval_store.index.addresses import Addresses, addresses_of, opener
from speculators.successors.candidates import make_candidates
from speculators.successors.config import CORPUS, TARGET, TEXT, SuccessorConfig
from speculators.successors.corpora import make_lookup
from speculators.successors.mix import SuccessorModel, initial_trusts
from speculators.successors.table import NONE, Arena, bytes_of_table, clear_table, make_table, table_size
from speculators.successors.vocabulary import VocabularyRows
from speculators.tenant_state import TenantState

MOST_IDLE = 16  # models of a size kept for the next requests: at most 6.3 MB each


class AddressedModel(NamedTuple):
    """A model, and the addresses of its arrays for compiled code."""

    model: SuccessorModel
    addresses: Addresses


class SuccessorModels:
    """Creates models and keeps the shared ones. All models use the same scratch space, one at a time.

    Models of finished requests are cleared and reused: the first write to each page of new memory takes longer than
    learning a prompt, and so does collecting the addresses.
    """

    def __init__(
        self, config: SuccessorConfig, sources: tuple[str, ...], vocabulary: VocabularyRows | None = None
    ) -> None:
        self._config = config
        self._text_orders = config.text_orders if TEXT in sources else ()
        self._target_orders = config.target_orders if TARGET in sources else ()
        self._vocabulary = VocabularyRows.none()
        if vocabulary is not None and TARGET in sources:
            self._vocabulary = vocabulary.copy()  # arrays from a wire are read-only, a type that Numba compiles anew
        self._shared: TenantState[TenantState[SuccessorModel]] = TenantState()  # scope -> hash of the prompt -> model
        self._idle: dict[tuple[int, int], list[AddressedModel]] = {}  # by rows of the text's and the target's table
        self._trusts = initial_trusts()
        self._lookup = make_lookup(config.corpus_orders if CORPUS in sources else ())
        self._candidates = make_candidates()

    def of(self, view: RequestView) -> AddressedModel:
        """Return the model of the request, its scope, or its prompt in its scope."""
        config = self._config
        if not config.shared:
            n_tokens = len(view.context) + view.request.params.max_tokens
            text_rows, target_rows = self._rows(n_tokens)
            idle = self._idle.get((table_size(text_rows), table_size(target_rows)))
            return idle.pop() if idle else self.addressed(self.new(n_tokens))
        kept = self._shared.of(view.request.scope, lambda: TenantState(max(config.prompts, 1)))
        prompt = np.array(view.request.prompt, np.int32).tobytes() if config.prompts else b""
        model = kept.of(blake2b(prompt, digest_size=16).hexdigest(), lambda: self.new(config.target_rows))
        recent_ids, recent_weights = model.recent_ids.copy(), model.recent_weights.copy()  # empty ones: never shared
        return self.addressed(model._replace(recent_ids=recent_ids, recent_weights=recent_weights))

    @staticmethod
    def addressed(model: SuccessorModel) -> AddressedModel:
        return AddressedModel(model, addresses_of(model, _EXAMPLE))

    def end(self, addressed: AddressedModel) -> None:
        """Clear the model of a finished request and keep it, unless it is shared."""
        model = addressed.model
        idle = self._idle.setdefault((len(model.text.keys), len(model.target.keys)), [])
        if self._config.shared or len(idle) == MOST_IDLE:
            return
        clear_table(model.text)
        clear_table(model.target)
        model.recent_ids.fill(NONE)
        model.trusts[:] = self._trusts
        looks_up = model.lookup is not self._lookup  # it would keep those texts in memory
        idle.append(self.addressed(model._replace(lookup=self._lookup)) if looks_up else addressed)

    def _rows(self, n_tokens: int) -> tuple[int, int]:
        """Return the rows of the text's and the target's table for a text of ``n_tokens``."""
        config = self._config
        n_text, n_target = 2 * n_tokens * len(self._text_orders), 64 * n_tokens * len(self._target_orders)
        return min(config.text_rows, n_text), min(config.target_rows, n_target)

    def new(self, n_tokens: int) -> SuccessorModel:
        """Return an empty model for a text of ``n_tokens``."""
        config = self._config
        text_rows, target_rows = self._rows(n_tokens)
        text_width, target_width = config.text_width, config.top_k
        arena = Arena(bytes_of_table(text_rows, text_width) + bytes_of_table(target_rows, target_width))
        return SuccessorModel(
            text=make_table(text_rows, text_width, self._text_orders, arena),
            target=make_table(target_rows, target_width, self._target_orders, arena),
            vocabulary=self._vocabulary,
            lookup=self._lookup,
            trusts=initial_trusts(),
            recent_ids=np.full(config.recent, NONE, np.int32),
            recent_weights=np.zeros(config.recent, np.float32),
            recent_trust=np.zeros(1, np.float32),
            candidates=self._candidates,
        )


_EXAMPLE = SuccessorModels(SuccessorConfig(), ()).new(1)
model_at = opener(_EXAMPLE)  # for compiled code: a model from its addresses
