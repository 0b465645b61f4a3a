"""AdaPLD (Liu et al. 2026, arXiv 2606.05742): prompt lookup that asks hidden states, and never finds nothing.

The longest n-gram at the end of the context is searched earlier in it; of several occurrences the one counts where the
target's hidden state was most like now (as PLD+ ranks them). Where no n-gram occurred before, the position with the
most similar state stands in for a match: *semantic* retrieval. What followed is copied. Beside this span, a few
alternatives to its first token branch off: what the target itself ranked highest behind the last token (Token
Recycling's rows), each with the one token that followed it where the state was most like now.

States are read a position back, because the last token has not been forwarded yet. The conversion that this was built
from gives no numbers for the lengths; those below are PLD+'s where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from engine.errors import ConfigError, UnknownMethodError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.tree import ROOT, IntArray
from speculators.method import Method
from speculators.ngrams.occurrences import Occurrences
from speculators.peers.scored_contexts import RecentRows, scored_contexts
from speculators.pld_plus.hidden_states import HiddenStates


@dataclass(frozen=True, slots=True)
class AdaPldConfig:
    """AdaPLD settings.

    Raises:
        ConfigError: a value is out of range.
    """

    ngram_max: int = 3  # tokens; the longest match looked for
    ngram_min: int = 1  # tokens; where none so long occurred, states are asked
    draft_tokens: int = 10  # tokens of the copied span
    branches: int = 8  # alternatives to its first token, at most
    least: float = 0.5  # cosine below which a position does not stand in for a match
    max_candidates: int = 4096  # latest positions whose states are compared: bounds the time of a step
    top_k: int = 8  # successors kept per token
    max_rows: int = 65536  # tokens whose successors are kept; the oldest gives way
    layer: int | None = None  # whose output is compared, from 0; that of pld_plus unless set
    dims: int = 128  # dimensions the states are projected to before they travel; 0: none

    def __post_init__(self) -> None:
        if not 1 <= self.ngram_min <= self.ngram_max:
            raise ConfigError(f"adapld: need 1 <= ngram_min <= ngram_max, got {self.ngram_min} and {self.ngram_max}")
        for name in ("draft_tokens", "max_candidates", "top_k", "max_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"adapld: {name} must be at least 1, got {getattr(self, name)}")
        for name in ("branches", "dims"):
            if getattr(self, name) < 0:
                raise ConfigError(f"adapld: {name} must be at least 0, got {getattr(self, name)}")
        if not -1.0 <= self.least <= 1.0:
            raise ConfigError(f"adapld: least must lie in -1..1, got {self.least}")


@dataclass(slots=True)
class _State:
    """One request's part."""

    hidden: HiddenStates
    successors: RecentRows[list[int]]
    occurrences: Occurrences = field(default_factory=Occurrences)


class AdaPld:
    """The published method.

    Raises:
        UnknownMethodError: the configuration names no layer.
    """

    name = "adapld"

    def __init__(self, config: AdaPldConfig) -> None:
        if config.layer is None:
            raise UnknownMethodError("adapld needs a layer of the model: set adapld.layer", "method")
        self._config = config
        self.needs = Needs(
            node_top_k=config.top_k,
            prompt_top_k=config.top_k,
            top_logprobs=True,
            hidden_layer=config.layer,
            hidden_dims=config.dims,
        )
        self._states: dict[int, _State] = {}

    def begin(self, view: RequestView) -> None:
        """Room for the states that will come."""
        hidden = HiddenStates(len(view.context) + min(view.request.params.max_tokens, 1024))
        self._states[view.request_id] = _State(hidden, RecentRows(self._config.max_rows))

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """One tree: the copied span first, then alternatives to its first token."""
        state, config = self._states[view.request_id], self._config
        text = view.context.view
        start = self._start(state, text)
        span = [] if start is None else text[start : start + min(config.draft_tokens, budget)].tolist()
        tokens, parents = list(span), list(range(-1, len(span) - 1))
        others = [token for token in state.successors.get((int(text[-1]),), ()) if token not in span[:1]]
        for token in others[: config.branches]:
            _, starts = state.occurrences.matches(text, np.array([token], np.int32), 1)
            after = self._most_alike(state, text, starts)
            for more, parent in ((token, ROOT), (None if after is None else int(text[after]), len(tokens))):
                if more is not None and len(tokens) < budget:
                    tokens.append(more)
                    parents.append(parent)
        return [Branch(tokens, self.name, parents)] if tokens else []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Keep the states of the positions the step committed, and the successors it read back."""
        state = self._states[view.request_id]
        for context, ids, _ in scored_contexts(view, outcome, 1, self._config.top_k):
            state.successors.put(context, ids)
        hidden = None if outcome.artefacts is None else outcome.artefacts.hidden
        if hidden is not None and len(hidden):
            # Whatever was forwarded ends one before the bonus token; a chunk without one says where it began.
            first = len(view.context) - 1 - len(hidden) if outcome.tokens else outcome.prompt_start
            state.hidden.put(first, hidden)

    def end(self, view: RequestView) -> None:
        """Drop the request's state."""
        self._states.pop(view.request_id, None)

    def _start(self, state: _State, text: IntArray) -> int | None:
        """Where the span begins: behind the longest match, else behind the most similar state."""
        config = self._config
        lengths, starts = state.occurrences.matches(text, text, config.ngram_max)
        longest = int(lengths.max(initial=0))
        if longest >= config.ngram_min:
            return self._most_alike(state, text, starts[lengths == longest])
        if state.hidden.end != len(text) - 1:
            return None
        positions = np.arange(max(state.hidden.first, len(text) - 1 - config.max_candidates), len(text) - 2)
        if len(positions) == 0:
            return None
        alike = state.hidden.cosines(positions)
        best = int(alike.argmax())
        return int(positions[best]) + 2 if alike[best] >= config.least else None

    def _most_alike(self, state: _State, text: IntArray, starts: IntArray) -> int | None:
        """The position of ``starts``, latest first, before which the state was most like now; or else the latest.

        A state is read two positions before: that of the token before the one that matched.
        """
        if len(starts) == 0:
            return None
        before = starts[: self._config.max_candidates].astype(np.intp) - 2
        known = before[before >= state.hidden.first] if state.hidden.end == len(text) - 1 else before[:0]
        if len(known) == 0:
            return int(starts[0])
        return int(known[state.hidden.cosines(known).argmax()]) + 2


ADAPLD = Method(
    name="adapld",
    factory=lambda settings, context: AdaPld(
        replace(settings, layer=context.options.layer if settings.layer is None else settings.layer)
    ),
    description="prompt lookup that compares hidden states where no n-gram matches",
    settings=AdaPldConfig,
    needs=("layer",),
)
