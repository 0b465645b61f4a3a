"""PLD+ (arXiv 2412.01447): prompt lookup in which the target's own states choose between earlier occurrences.

It ranks the earlier occurrences of the last token, ``P = {j : x[j] = x[t-1], 1 <= j < t-1}`` (equation 1), and drafts
what followed the best of them:

* ``pld-plus-a`` (equation 2): ``argmax_j max_{(layer, head) in H} A[t-2 -> j]``. ``A`` is the attention of the last
  forwarded position, which predicted ``x[t-1]``; ``H`` are a few induction heads (``induction_heads``).
* ``pld-plus-h`` (equation 3): ``argmax_j cos(h[j-1], h[t-2])``. ``h`` are hidden states of one layer.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.tree import FloatArray, IntArray
from speculators.method import Method
from speculators.node_counter import NodeCounter
from speculators.per_request import PerRequest
from speculators.pld_plus.hidden_states import HiddenStates, Positions
from speculators.settings import Settings, setting

StateT = TypeVar("StateT")

ALL_OCCURRENCES = 1 << 30
RANKED_PER_BRANCH = 4  # several occurrences may have the same continuation
LONG_RUN = 0.8  # P(the next token is copied, too) after many copied tokens
FADE = 0.7  # how much of the distance to LONG_RUN remains after each copied token


@dataclass(frozen=True, slots=True)
class PldPlusConfig(Settings):
    """Settings of both variants."""

    draft_tokens: int = setting(70, "tokens drafted from the best occurrence (K)", at_least=1)
    max_branches: int = setting(4, "occurrences to draft from; the published method has 1", at_least=1)
    branch_tokens: int = setting(8, "tokens of each further branch", at_least=1)
    max_candidates: int = setting(256, "latest occurrences to rank; bounds the time of a step", at_least=1)
    layer: int | None = setting(None, "layer whose output pld-plus-h compares, from 0; default: 9/32 deep", at_least=0)
    dims: int = setting(128, "dimensions that pld-plus-h projects states to; 0: no projection", at_least=0)
    heads: tuple[tuple[int, int], ...] = setting((), "induction heads that pld-plus-a reads, [layer, head] each")

    def check(self) -> None:
        if any(layer < 0 or head < 0 for layer, head in self.heads) or len(set(self.heads)) < len(self.heads):
            raise ConfigError(f"heads is {self.heads}; it must have different (layer, head) pairs from 0 on")

    @classmethod
    def paper(cls, layer: int | None = None, heads: tuple[tuple[int, int], ...] = ()) -> PldPlusConfig:
        """Return the published method: it ranks every occurrence by unprojected states and drafts from one."""
        return cls(layer=layer, heads=heads, max_branches=1, max_candidates=ALL_OCCURRENCES, dims=0)


def paper_layer(n_layers: int) -> int:
    """Return the layer at the published relative depth, layer 9 of 32."""
    return n_layers * 9 // 32


class _PldPlus(PerRequest[StateT]):
    """Drafts from the occurrences that ``_rank`` prefers."""

    curve: tuple[tuple[float, ...], tuple[float, ...]]  # similarities and P(first token): docs/methods/prompt-lookup.md

    def __init__(self, config: PldPlusConfig) -> None:
        super().__init__()
        self._config = config

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return chains, the best occurrence's first; the further ones may use half of the budget."""
        config, context = self._config, view.context.view
        counter = NodeCounter()
        branches: list[Branch] = []
        starts, chances = self._starts(view.request_id, context) if budget > 0 else ([], [])
        further = config.branch_tokens * (min(config.max_branches, len(starts)) - 1)
        length = min(config.draft_tokens, budget - min(further, budget // 2))
        remaining = 1.0  # probability that no earlier branch is right
        for start, chance in zip(starts, chances, strict=True):
            draft = context[start : start + length].tolist()
            before = counter.n_nodes
            n_fit = counter.add(draft, budget)
            if counter.n_nodes > before:
                branches.append(Branch(draft[:n_fit], self.name, scores=_scores(chance * remaining, n_fit)))
                remaining *= 1 - chance
            if len(branches) == config.max_branches or counter.n_nodes >= budget:
                break
            length = config.branch_tokens
        return branches

    def _starts(self, request_id: int, context: IntArray) -> tuple[list[int], list[float]]:
        """Return where continuations begin, best first, and the probability of each one's first token."""
        # Nothing follows the last position, and position 0 has no state before it.
        found = np.flatnonzero(context[1:-1] == context[-1])[-self._config.max_candidates :] + 1
        known, similarities = self._rank(request_id, found, len(context)) if len(found) else (found, found)
        if len(known) == 0:
            return [], []
        if self._config.max_branches == 1:
            best = np.argmax(similarities, keepdims=True)
        else:
            best = np.argsort(-similarities, kind="stable")[: RANKED_PER_BRANCH * self._config.max_branches]
        return (known[best] + 1).tolist(), np.interp(similarities[best], *self.curve).tolist()

    @abstractmethod
    def _rank(self, request_id: int, found: Positions, length: int) -> tuple[Positions, FloatArray]:
        """Return those positions of ``found`` ``[n]``, ascending, with known states, and their similarities.

        ``length`` is the number of tokens in the context.
        """


def _scores(first: float, n: int) -> list[float]:
    """Return the probabilities of ``n`` copied tokens: each copied token makes the next one more likely."""
    scores = []
    for _ in range(n):
        scores.append(first)
        first += (1 - FADE) * (LONG_RUN - first)
    return scores


class PldPlusHidden(_PldPlus[HiddenStates]):
    """PLD+ (h): drafts from the occurrence with the most similar context in the states of one layer."""

    name = "pld-plus-h"
    curve = ((0.2, 0.5, 0.8, 0.95, 1.0), (0.08, 0.16, 0.32, 0.52, 0.70))

    def __init__(self, config: PldPlusConfig) -> None:
        super().__init__(config)
        self.needs = Needs(hidden_layer=config.layer, hidden_dims=config.dims)

    def new_state(self, view: RequestView) -> HiddenStates:
        return HiddenStates(len(view.context) + min(view.request.params.max_tokens, 1024))

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        self.states[view.request_id].observe(view, outcome)

    def _rank(self, request_id: int, found: Positions, length: int) -> tuple[Positions, FloatArray]:
        states = self.states[request_id]
        if states.end != length - 1:
            return found[:0], np.empty(0, np.float32)
        if states.first:
            found = found[found > states.first]
        return found, states.cosines(found - 1)


class PldPlusAttention(_PldPlus[FloatArray]):
    """PLD+ (a): drafts from the occurrence that got most of an induction head's attention in the last position."""

    name = "pld-plus-a"
    curve = ((0.0, 0.02, 0.1, 0.3, 0.7, 1.0), (0.07, 0.11, 0.22, 0.50, 0.62, 0.66))

    def __init__(self, config: PldPlusConfig) -> None:
        super().__init__(config)
        self.needs = Needs(heads=config.heads)

    def new_state(self, view: RequestView) -> FloatArray:
        return np.empty(0, np.float32)

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        attention = None if outcome.artefacts is None else outcome.artefacts.attention
        if attention is not None and len(attention):
            self.states[view.request_id] = attention.max(axis=0)  # [n_positions]

    def _rank(self, request_id: int, found: Positions, length: int) -> tuple[Positions, FloatArray]:
        row = self.states[request_id]
        if len(row) != length - 1:
            return found[:0], np.empty(0, np.float32)
        return found, row[found]


PLD_PLUS_H = Method(
    name="pld-plus-h",
    factory=lambda config, context: PldPlusHidden(
        config if config.layer is not None else replace(config, layer=context.options.layer)
    ),
    description="copies what followed the earlier occurrence with the most similar hidden state",
    source="PLD+, arXiv 2412.01447, equation 3",
    settings=PldPlusConfig,
    needs=("layer",),
    section="pld_plus",
)
PLD_PLUS_A = Method(
    name="pld-plus-a",
    factory=lambda config, context: PldPlusAttention(replace(config, heads=config.heads or context.options.heads)),
    description="copies what followed the earlier occurrence that induction heads attend to",
    source="PLD+, arXiv 2412.01447, equation 2",
    settings=PldPlusConfig,
    needs=("heads",),
    section="pld_plus",
)
