"""PLD+ (arXiv 2412.01447): prompt lookup that asks the target which earlier occurrence it means.

Prompt lookup knows words only: of several earlier occurrences of the last token it takes the one with the longest
matching n-gram. PLD+ ranks all of them, ``P = {j : x[j] = x[t-1], 1 <= j < t-1}`` (equation 1), by what the target has
computed anyway, and drafts what followed the best:

* ``pld-plus-a`` (equation 2): ``argmax_j max_{(layer, head) in H} A[t-2 -> j]``, the attention of the last forwarded
  position (the one that predicted ``x[t-1]``) in a few *induction heads* ``H``
  (``speculators.pld_plus.induction_heads``).
* ``pld-plus-h`` (equation 3): ``argmax_j cos(h[j-1], h[t-2])``, hidden states of one layer, a position back because the
  last token itself has not been forwarded yet.

It helps where the output is written along the input: summaries, edits, code that is changed. States of positions that
were forwarded before the request began here (a speculator that was restarted) are unknown; such occurrences are left
out. Tokens are compared exactly, so what is drafted is always a span of the context.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError, UnknownMethodError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.tree import FloatArray, IntArray
from speculators.node_counter import NodeCounter
from speculators.pld_plus.hidden_states import HiddenStates

_Positions = npt.NDArray[np.intp]

_EVERY = 1 << 30
_TRIED = 4  # occurrences looked at per branch
_LONG_RUN = 0.8  # P(the next token is copied, too) once many were
_FADE = 0.7  # of the first token's doubts per token that was copied


@dataclass(frozen=True, slots=True)
class PldPlusConfig:
    """Settings of both variants.

    Raises:
        ConfigError: a value is out of range.
    """

    draft_tokens: int = 70  # K, tokens of the best occurrence's branch
    max_branches: int = 4  # occurrences drafted from; 1 is the published method
    branch_tokens: int = 8  # tokens of each further branch
    max_candidates: int = 256  # the latest so many occurrences are ranked: bounds the time of a step
    layer: int | None = None  # (h) the layer whose output is compared, from 0; about 0.3 of the model's layers
    dims: int = 128  # (h) dimensions the states are projected to before they travel; 0: none
    heads: tuple[tuple[int, int], ...] = ()  # (a) induction heads of the model, (layer, head)

    def __post_init__(self) -> None:
        for name in ("draft_tokens", "max_branches", "branch_tokens", "max_candidates"):
            if getattr(self, name) < 1:
                raise ConfigError(f"pld_plus: {name} must be at least 1, got {getattr(self, name)}")
        if self.dims < 0 or (self.layer is not None and self.layer < 0):
            raise ConfigError(f"pld_plus: dims {self.dims} and layer {self.layer} must not be negative")
        if any(layer < 0 or head < 0 for layer, head in self.heads) or len(set(self.heads)) < len(self.heads):
            raise ConfigError(f"pld_plus: heads must be different (layer, head) pairs from 0 on, got {self.heads}")

    @classmethod
    def paper(cls, layer: int | None = None, heads: tuple[tuple[int, int], ...] = ()) -> PldPlusConfig:
        """As published: every occurrence ranked, by the states as they are, and one drafted from."""
        return replace(cls(layer=layer, heads=heads), max_branches=1, max_candidates=_EVERY, dims=0)


def paper_layer(n_layers: int) -> int:
    """The published relative depth: layer 9 of 32."""
    return n_layers * 9 // 32


class _PldPlus(ABC):
    """What both variants share: occurrences in, spans out."""

    name: str
    needs: Needs
    curve: tuple[
        tuple[float, ...], tuple[float, ...]
    ]  # similarity -> P(first token), measured: docs/methods/pld-plus.md

    def __init__(self, config: PldPlusConfig) -> None:
        self._config = config

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """At most ``max_branches`` chains, best occurrence first; further ones may count on half of the budget."""
        context = view.context.view
        counter = NodeCounter()
        branches: list[Branch] = []
        if budget <= 0:
            return branches
        starts, chances = self._starts(view.request_id, context)
        further = self._config.branch_tokens * (min(self._config.max_branches, len(starts)) - 1)
        length = min(self._config.draft_tokens, budget - min(further, budget // 2))
        left = 1.0  # what the branches before leave to chance
        for start, chance in zip(starts, chances, strict=True):
            draft = context[start : start + length].tolist()
            before = counter.n_nodes
            fits = counter.add(draft, budget)
            if counter.n_nodes > before:
                branches.append(Branch(draft[:fits], self.name, scores=_scores(chance * left, fits)))
                left *= 1 - chance
            if len(branches) == self._config.max_branches or counter.n_nodes >= budget:
                break
            length = self._config.branch_tokens
        return branches

    def _starts(self, request_id: int, context: IntArray) -> tuple[list[int], list[float]]:
        """Where continuations begin, best first, and how likely each is; more than branches: several may be alike."""
        # Tokens behind the last position cannot be drafted from it, and position 0 has no state before it.
        found = np.flatnonzero(context[1:-1] == context[-1])[-self._config.max_candidates :] + 1
        if len(found) == 0:
            return [], []
        known, similarities = self._rank(request_id, found, len(context))
        if len(known) == 0:
            return [], []
        if self._config.max_branches == 1:
            best = np.argmax(similarities, keepdims=True)
        else:
            best = np.argsort(-similarities, kind="stable")[: _TRIED * self._config.max_branches]
        return (known[best] + 1).tolist(), np.interp(similarities[best], *self.curve).tolist()

    @abstractmethod
    def _rank(self, request_id: int, found: _Positions, length: int) -> tuple[_Positions, FloatArray]:
        """The occurrences of ``found`` whose states are known, and how much the target means each.

        Args:
            request_id: of the request.
            found: ascending positions of the last token's earlier occurrences, ``[n]``.
            length: tokens of the context.
        """


def _scores(first: float, n: int) -> list[float]:
    """Chances of ``n`` tokens of a span: the first one's, rising with the number of tokens copied before."""
    scores = []
    for _ in range(n):
        scores.append(first)
        first += (1 - _FADE) * (_LONG_RUN - first)
    return scores


class PldPlusHidden(_PldPlus):
    """PLD+ (h): the occurrence in the most similar context, as one layer sees it.

    Raises:
        UnknownMethodError: the configuration names no layer.
    """

    name = "pld-plus-h"
    curve = ((0.2, 0.5, 0.8, 0.95, 1.0), (0.08, 0.16, 0.32, 0.52, 0.70))

    def __init__(self, config: PldPlusConfig) -> None:
        if config.layer is None:
            raise UnknownMethodError("pld-plus-h needs a layer of the model: set pld_plus.layer", "method")
        super().__init__(config)
        self.needs = Needs(hidden_layer=config.layer, hidden_dims=config.dims)
        self._states: dict[int, HiddenStates] = {}  # request id -> states of its positions

    def begin(self, view: RequestView) -> None:
        """Room for the states that will come."""
        self._states[view.request_id] = HiddenStates(len(view.context) + min(view.request.params.max_tokens, 1024))

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Keep the states of the positions the step committed."""
        hidden = None if outcome.artefacts is None else outcome.artefacts.hidden
        if hidden is None or len(hidden) == 0:
            return
        # Whatever was forwarded ends one before the bonus token; a chunk without one says where it began.
        first = len(view.context) - 1 - len(hidden) if outcome.tokens else outcome.prompt_start
        self._states[view.request_id].put(first, hidden)

    def end(self, view: RequestView) -> None:
        """Drop the states."""
        self._states.pop(view.request_id, None)

    def _rank(self, request_id: int, found: _Positions, length: int) -> tuple[_Positions, FloatArray]:
        states = self._states[request_id]
        if states.end != length - 1:
            return found[:0], np.empty(0, np.float32)
        before = found - 1
        if states.first:
            before = before[before >= states.first]
        return before + 1, states.cosines(before)


class PldPlusAttention(_PldPlus):
    """PLD+ (a): the occurrence that an induction head looked at most when it predicted the last token.

    Raises:
        UnknownMethodError: the configuration names no heads.
    """

    name = "pld-plus-a"
    curve = ((0.0, 0.02, 0.1, 0.3, 0.7, 1.0), (0.07, 0.11, 0.22, 0.50, 0.62, 0.66))

    def __init__(self, config: PldPlusConfig) -> None:
        if not config.heads:
            raise UnknownMethodError(
                "pld-plus-a needs the model's induction heads: give --heads FILE, as written by 'spectra heads find'",
                "method",
            )
        super().__init__(config)
        self.needs = Needs(heads=config.heads)
        self._rows: dict[int, FloatArray] = {}  # request id -> [n_positions], most attention any head paid

    def begin(self, view: RequestView) -> None:
        """Nothing is known before the first step."""

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Keep the attention of the last forwarded position; it is outdated by the next step."""
        attention = None if outcome.artefacts is None else outcome.artefacts.attention
        if attention is not None and len(attention):
            self._rows[view.request_id] = attention.max(axis=0)

    def end(self, view: RequestView) -> None:
        """Drop the row."""
        self._rows.pop(view.request_id, None)

    def _rank(self, request_id: int, found: _Positions, length: int) -> tuple[_Positions, FloatArray]:
        row = self._rows.get(request_id)
        if row is None or len(row) != length - 1:
            return found[:0], np.empty(0, np.float32)
        return found, row[found]
