"""Prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding): what followed the same words before.

The last ``n`` tokens are searched in the context, from ``ngram_max`` down to ``ngram_min``; the tokens behind an
earlier occurrence are the draft. Two earlier occurrences of one n-gram differ in *recency* (where they are) and in
*length of continuation* (how many tokens follow, at most ``draft_tokens``; only occurrences close to the end have
fewer). The method ranks by length: in a loop with a short period the most recent occurrence would draft one period
only, an older one drafts ``draft_tokens``. Among equals the choice is random (or as ``tie_break`` says).

Occurrences of the last token are chained (``speculators.ngrams.matches``), so a lookup takes the same time behind any
length of context; the prompt is chained before the first draft, 0.1 ms for 10k tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.tree import IntArray
from speculators.ngrams.matches import Occurrences
from speculators.node_counter import NodeCounter

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class PldConfig:
    """Prompt lookup settings; the defaults are the published method's.

    Raises:
        ConfigError: a value is out of range.
    """

    ngram_max: int = 3  # tokens; the first length tried
    ngram_min: int = 1  # tokens; the last length tried
    draft_tokens: int = 10  # K, tokens per branch
    max_branches: int = 1  # distinct continuations per step; 1 is the published method
    tie_break: Literal["random", "first", "recent"] = "random"  # among continuations of equal length

    def __post_init__(self) -> None:
        if not 1 <= self.ngram_min <= self.ngram_max:
            raise ConfigError(f"pld: need 1 <= ngram_min <= ngram_max, got {self.ngram_min} and {self.ngram_max}")
        if self.draft_tokens < 1 or self.max_branches < 1:
            raise ConfigError(
                f"pld: draft_tokens {self.draft_tokens} and max_branches {self.max_branches} must be at least 1"
            )
        if self.tie_break not in ("random", "first", "recent"):
            raise ConfigError(f"pld: tie_break must be random, first or recent, got {self.tie_break!r}")


class PromptLookup:
    """Drafts what followed the longest recent n-gram at an earlier place of the context."""

    name = "pld"
    needs = Needs()

    def __init__(self, config: PldConfig | None = None) -> None:
        self._config = config or PldConfig()
        self._known: dict[int, Occurrences] = {}

    catches_up = True  # a draft learns all of the context that no earlier one has

    def begin(self, view: RequestView) -> None:
        """Nothing is known of the context before the first draft."""
        self._known[view.request_id] = Occurrences()

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """At most ``max_branches`` chains, longest n-gram first, then longest continuation."""
        context = view.context.view
        counter = NodeCounter()
        branches: list[Branch] = []
        if budget <= 0 or len(context) < 2:
            return branches
        known = self._known.get(view.request_id) or Occurrences()
        lengths, starts = known.matches(context, context, self._config.ngram_max)
        for start in self._best(lengths, starts, len(context), view.request.params.seed):
            draft = context[start : start + self._config.draft_tokens].tolist()
            before = counter.n_nodes
            fits = counter.add(draft, budget)
            if counter.n_nodes > before:
                branches.append(Branch(draft[:fits], self.name))
            if len(branches) == self._config.max_branches or counter.n_nodes >= budget:
                break
        return branches

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Nothing to learn: the owner of the view has already appended the tokens."""

    def end(self, view: RequestView) -> None:
        """Drop what is known of the context."""
        self._known.pop(view.request_id, None)

    def _best(self, lengths: IntArray, starts: IntArray, n_context: int, seed: int) -> Iterator[int]:
        """Where continuations begin, best first; ``lengths`` of the matches before ``starts``, the latest first."""
        seen: set[int] = set()
        if not len(starts):
            return
        for n in range(self._config.ngram_max, self._config.ngram_min - 1, -1):
            for start in self._ranked(starts[lengths >= n][::-1], n_context, seed):
                if start not in seen:
                    seen.add(start)
                    yield start

    def _ranked(self, starts: IntArray, length: int, seed: int) -> Iterator[int]:
        """One n-gram's occurrences by length of continuation, equals by ``tie_break``; ``starts`` ascend."""
        full = int(np.searchsorted(starts, length - self._config.draft_tokens, side="right"))
        yield from self._tied(starts[:full], seed, length)
        # Behind these the context ends early: every later start leaves one token less or more, so there are no ties.
        yield from starts[full:].tolist()

    def _tied(self, starts: IntArray, seed: int, position: int) -> Iterator[int]:
        if len(starts) == 0:
            return
        if self._config.tie_break == "recent":
            yield from starts[::-1].tolist()
            return
        # Turning the list by a random amount makes every start equally likely to come first, and shuffles nothing.
        turn = _mix(seed, position) % len(starts) if self._config.tie_break == "random" else 0
        for i in range(len(starts)):
            yield int(starts[(turn + i) % len(starts)])


def _mix(seed: int, position: int) -> int:
    """64 well-mixed bits out of (seed, position): the splitmix64 finaliser."""
    x = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
