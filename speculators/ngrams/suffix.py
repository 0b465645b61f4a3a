"""Suffix decoding (SuffixDecoding, Oliaro et al. 2024, arXiv 2411.04975): what followed the longest match.

As published: a tree of all suffixes, up to a depth, of the request's own text (and, by option, of earlier outputs). The
longest suffix of the context that occurs in it is followed; from there a draft grows best first by the product of
branch frequencies, as long as that product is at least 0.1, to ``1 + 4 x match`` tokens and at most 60.

The tree itself is never built: its answer depends only on where the suffix occurred, and following the occurrences of
the last token (``speculators.ngrams.occurrences``) takes less time than keeping counts in a tree takes per token. Every
suffix length is tried and the draft with the highest sum of path probabilities wins, as in the published code; a longer
match has fewer occurrences, hence surer frequencies.

Our default is another method of the same inputs, the text half of ``speculators.successors.speculator``: it mixes the
lengths of match instead of choosing one, and fills any budget. ``mode="paper"`` is the published one. It helps where
text comes back: code edits, agents, quotations, loops. On text that never repeats it drafts little and costs little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView, Speculator
from engine.token_buffer import TokenBuffer
from engine.tree import ROOT, IntArray
from speculators.method import Method, MethodContext
from speculators.ngrams.occurrences import Occurrences
from speculators.tenant_state import TenantState

DOCUMENT_END = -1  # between earlier outputs: no match and no draft crosses it


@dataclass(frozen=True, slots=True)
class SuffixConfig:
    """Suffix decoding settings.

    Raises:
        ConfigError: a value is out of range.
    """

    mode: Literal["mixed", "paper"] = "mixed"  # our mixture, or the published algorithm with what follows
    max_match: int = 64  # tokens; the depth of the published tree
    draft_base: int = 1  # tokens of a draft: base + factor x match, at most max_draft
    draft_factor: float = 4.0
    max_draft: int = 60
    min_probability: float = 0.1  # of a path, as the product of branch frequencies
    max_occurrences: int = 64  # of one suffix that are followed, the most recent ones
    history: int = 65536  # tokens of earlier outputs kept per scope; 0: none
    shared: bool = False  # whether earlier outputs of the scope are searched too

    def __post_init__(self) -> None:
        if self.mode not in ("mixed", "paper"):
            raise ConfigError(f"suffix: mode must be mixed or paper, got {self.mode!r}")
        for name in ("max_match", "draft_base", "max_draft", "max_occurrences"):
            if getattr(self, name) < 1:
                raise ConfigError(f"suffix: {name} must be at least 1, got {getattr(self, name)}")
        if self.history < 0 or self.draft_factor < 0:
            raise ConfigError(f"suffix: history {self.history} and draft_factor {self.draft_factor} must be at least 0")
        if not 0.0 < self.min_probability <= 1.0:
            raise ConfigError(f"suffix: min_probability must lie in (0, 1], got {self.min_probability}")


class _Earlier(TokenBuffer):
    """The earlier outputs of a scope."""

    def __init__(self, tokens: Sequence[int]) -> None:
        super().__init__(tokens)
        self.known = Occurrences()


class SuffixDecoding:
    """The published method."""

    name = "suffix"
    needs = Needs()

    def __init__(self, config: SuffixConfig | None = None) -> None:
        self._config = config or SuffixConfig(mode="paper")
        self._earlier: TenantState[_Earlier] = TenantState()  # its outputs, DOCUMENT_END behind each
        self._known: dict[int, Occurrences] = {}

    catches_up = True  # a draft learns all of the context that no earlier one has

    def begin(self, view: RequestView) -> None:
        """Nothing is known of the context before the first draft."""
        self._known[view.request_id] = Occurrences()

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """The best-scored draft of all suffix lengths and both texts, a tree where continuations differ."""
        context = view.context.view
        if len(context) == 0 or budget <= 0:
            return []
        known = self._known.get(view.request_id) or Occurrences()
        drafts = self._drafts(known, context, context, budget)
        if self._config.shared and view.request.scope in self._earlier:
            earlier = self._earlier[view.request.scope]
            drafts += self._drafts(earlier.known, earlier.view, context, budget)
        best = max(drafts, key=lambda draft: draft.expected, default=None)
        if best is None or not best.tokens:
            return []
        return [Branch(best.tokens, self.name, best.parents, scores=best.scores)]

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Nothing to learn: the owner of the view has already appended the tokens."""

    def end(self, view: RequestView) -> None:
        """Keep the output for later requests of the scope, if they may see it."""
        self._known.pop(view.request_id, None)
        output = view.context.view[view.n_prompt :].tolist()
        if not self._config.shared or not self._config.history or not output:
            return
        kept = self._earlier.get(view.request.scope)
        tokens = [] if kept is None else kept.view[-self._config.history :].tolist()
        tokens = [*tokens, *output, DOCUMENT_END][-self._config.history :]
        self._earlier.keep(view.request.scope, _Earlier(tokens))

    def _drafts(self, known: Occurrences, text: IntArray, context: IntArray, budget: int) -> list[_Draft]:
        """Drafts for the lengths of match that some occurrence reaches and no longer one does.

        No draft is worth more than the tokens it may have or the text has left: lengths that promise most come first,
        and a length that promises less than the best draft so far is left out.
        """
        config = self._config
        lengths, starts = known.matches(text, context, config.max_match)
        promises: list[tuple[int, int, int, list[int]]] = []  # at most so much; match, tokens, places
        for match in np.unique(lengths).tolist():
            places = starts[lengths >= match][: config.max_occurrences].tolist()
            n_tokens = min(int(config.draft_base + config.draft_factor * match), config.max_draft, budget)
            promises.append((min(n_tokens, len(text) - places[-1]), match, n_tokens, places))
        drafts: list[_Draft] = []
        best = 0.0
        for promise, _, n_tokens, places in sorted(promises, reverse=True):
            if promise <= best:
                break
            draft = _Draft(text, places)
            draft.grow(n_tokens, config.min_probability)
            drafts.append(draft)
            best = max(best, draft.expected)
        return drafts


class _Draft:
    """A tree that grows from the occurrences of one suffix."""

    def __init__(self, text: IntArray, starts: Sequence[int]) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self.expected = 0.0  # tokens, by the frequencies
        self._text = text
        self._open: list[tuple[float, int, float, int, int, list[int]]] = []  # a heap of -path p, number, p, parent ...
        self._n_open = 0  # ... token, and the places behind it; equals by number
        self._branch(1.0, ROOT, starts)

    def grow(self, n_tokens: int, least: float) -> None:
        """Add up to ``n_tokens`` nodes of path probability ``least`` or more, the most probable first."""
        while self._open and len(self.tokens) < n_tokens:
            minus_path, _, p, parent, token, places = heappop(self._open)
            if -minus_path < least:
                return
            self.tokens.append(token)
            self.parents.append(parent)
            self.scores.append(p)
            self.expected -= minus_path
            self._branch(-minus_path, len(self.tokens) - 1, places)

    def _branch(self, path: float, parent: int, places: Sequence[int]) -> None:
        """What follows at ``places`` becomes open below ``parent``."""
        inside = [place for place in places if place < len(self._text)]
        behind: dict[int, list[int]] = {}  # token -> the places behind it
        for token, place in zip(self._text[inside].tolist() if inside else (), inside, strict=True):
            behind.setdefault(token, []).append(place + 1)
        behind.pop(DOCUMENT_END, None)
        n = sum(map(len, behind.values()))
        for token, following in behind.items():
            self._n_open += 1
            p = len(following) / n
            heappush(self._open, (-path * p, self._n_open, p, parent, token, following))


def _suffix(settings: SuffixConfig, context: MethodContext) -> Speculator:
    from speculators.successors.config import TEXT, SuccessorConfig
    from speculators.successors.speculator import Successors

    if settings.mode == "paper":
        return SuffixDecoding(settings)
    return Successors(context.options.of(SuccessorConfig), (TEXT,))


SUFFIX = Method(
    name="suffix",
    factory=lambda settings, context: _suffix(settings, context),
    description="what followed the longest contexts in the text itself",
    settings=SuffixConfig,
)
