"""AdaPLD (Liu et al. 2026, arXiv 2606.05742): prompt lookup that compares hidden states where no n-gram matches.

Of several occurrences of the longest n-gram, the one with the most similar hidden state of the target counts. Where no
n-gram occurred before, the position with the most similar state replaces the match. The tokens after it are copied.
Alternatives to the first token are the target's best ids after the last token, each with the token that followed it
where the state was most similar. The last token has no state yet, so states are compared one position before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.tree import ROOT, IntArray
from speculators.method import Method, MethodContext
from speculators.ngrams.occurrences import Occurrences
from speculators.ngrams.pld import NgramConfig
from speculators.peers.scored_contexts import RecentRows, scored_contexts
from speculators.per_request import PerRequest
from speculators.pld_plus.hidden_states import HiddenStates
from speculators.pld_plus.speculator import PldPlusConfig
from speculators.settings import setting


@dataclass(frozen=True, slots=True)
class AdaPldConfig(NgramConfig):
    """AdaPLD settings."""

    branches: int = setting(8, "alternatives to the first copied token, at most", at_least=0)
    least: float = setting(0.5, "lowest cosine at which a state replaces a match", at_least=-1, at_most=1)
    max_candidates: int = setting(4096, "latest positions whose states are compared", at_least=1)
    top_k: int = setting(8, "successors kept per token", at_least=1)
    max_rows: int = setting(65536, "tokens whose successors are kept; the oldest are dropped", at_least=1)
    layer: int | None = setting(None, "layer whose output is compared, from 0; that of pld_plus unless set", at_least=0)
    dims: int = setting(128, "dimensions that states are projected to; 0: none", at_least=0)


@dataclass(slots=True)
class AdaPldState:
    """State of one request."""

    hidden: HiddenStates
    successors: RecentRows[list[int]]
    occurrences: Occurrences = field(default_factory=Occurrences)


class AdaPld(PerRequest[AdaPldState]):
    """The published method; its settings name a layer."""

    name = "adapld"

    def __init__(self, config: AdaPldConfig) -> None:
        super().__init__()
        self._config = config
        k, layer, dims = config.top_k, config.layer, config.dims
        self.needs = Needs(0, k, k, hidden_layer=layer, hidden_dims=dims, top_logprobs=True)

    def new_state(self, view: RequestView) -> AdaPldState:
        hidden = HiddenStates(len(view.context) + min(view.request.params.max_tokens, 1024))
        return AdaPldState(hidden, RecentRows(self._config.max_rows))

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return one tree: the copied tokens, then alternatives to the first of them."""
        state, config, text = self.states[view.request_id], self._config, view.context.view
        start = self._start(state, text)
        copied = [] if start is None else text[start : start + min(config.draft_tokens, budget)].tolist()
        tokens, parents = list(copied), list(range(ROOT, len(copied) - 1))
        others = [token for token in state.successors.get((int(text[-1]),), ()) if token not in copied[:1]]
        for token in others[: config.branches]:
            _, starts = state.occurrences.matches(text, np.array([token], np.int32), 1)
            after, _ = self._most_similar(state, text, starts)
            chain = ([token] if after is None else [token, int(text[after])])[: budget - len(tokens)]
            parents += (ROOT, len(tokens))[: len(chain)]
            tokens += chain
        return [Branch(tokens, self.name, parents)] if tokens else []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Keep the states of the committed positions and the ids that were read back."""
        state = self.states[view.request_id]
        for context, ids, _ in scored_contexts(view, outcome, 1, self._config.top_k):
            state.successors.put(context, ids)
        state.hidden.observe(view, outcome)

    def _start(self, state: AdaPldState, text: IntArray) -> int | None:
        """Return the position after the longest match, or else after the most similar state."""
        config = self._config
        lengths, starts = state.occurrences.matches(text, text, config.ngram_max)
        longest = int(lengths.max(initial=0))
        if longest >= config.ngram_min:
            return self._most_similar(state, text, starts[lengths == longest])[0]
        others = np.arange(
            max(state.hidden.first + 2, len(text) + 1 - config.max_candidates), len(text), dtype=np.int32
        )
        start, cosine = self._most_similar(state, text, others)
        return start if cosine >= config.least else None

    def _most_similar(self, state: AdaPldState, text: IntArray, starts: IntArray) -> tuple[int | None, float]:
        """Return the one of ``starts`` with the most similar state two positions before, and the cosine.

        Two positions before a start is the token before the last matching one. Without states, return the first start.
        """
        before = starts[: self._config.max_candidates].astype(np.intp) - 2
        known = before[before >= state.hidden.first] if state.hidden.end == len(text) - 1 else before[:0]
        if len(known) == 0:
            return int(starts[0]) if len(starts) else None, -inf
        cosines = state.hidden.cosines(known)
        best = int(cosines.argmax())
        return int(known[best]) + 2, float(cosines[best])


def _make(settings: AdaPldConfig, context: MethodContext) -> AdaPld:
    options = context.options
    layers = (settings.layer, options.settings_of(PldPlusConfig).layer, options.layer)
    return AdaPld(replace(settings, layer=next(layer for layer in layers if layer is not None)))


ADAPLD = Method(
    name="adapld",
    factory=_make,
    description="prompt lookup that compares the target's hidden states where no n-gram matches",
    source="arXiv 2606.05742",
    settings=AdaPldConfig,
    needs=("layer",),
)
