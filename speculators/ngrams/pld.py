"""Prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding): what followed the same words before.

The last ``n`` tokens are searched in the context, from ``ngram_max`` down to ``ngram_min``; the tokens behind an
earlier occurrence are the draft. Two earlier occurrences of one n-gram differ in *recency* (where they are) and in
*length of continuation* (how many tokens follow, at most ``draft_tokens``; only occurrences close to the end have
fewer). The method ranks by length: in a loop with a short period the most recent occurrence would draft one period
only, an older one drafts ``draft_tokens``. Among equals the choice is random (or as ``tie_break`` says).

There is no state: one vectorised comparison over the context takes about 10 us at 4k tokens, an index of n-grams would
take longer to build for a prompt than it ever saves, and memory per request besides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.tree import IntArray
from speculators.node_counter import NodeCounter

_Positions = npt.NDArray[np.intp]

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
    catches_up = True  # it hears nothing: the context is all there is

    def __init__(self, config: PldConfig | None = None) -> None:
        self._config = config or PldConfig()

    def begin(self, view: RequestView) -> None:
        """Nothing to remember: the context is all there is."""

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """At most ``max_branches`` chains, longest n-gram first, then longest continuation."""
        context = view.context.view
        counter = NodeCounter()
        branches: list[Branch] = []
        if budget <= 0:
            return branches
        for start in self._starts(context, view.request.params.seed):
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
        """Nothing to drop."""

    def _starts(self, context: IntArray, seed: int) -> Iterator[int]:
        """Where continuations begin, best first."""
        seen: set[int] = set()
        for starts in _matches(context, self._config.ngram_min, self._config.ngram_max):
            for start in self._ranked(starts, len(context), seed):
                if start not in seen:
                    seen.add(start)
                    yield start

    def _ranked(self, starts: _Positions, length: int, seed: int) -> Iterator[int]:
        """One n-gram's occurrences by length of continuation, equals by ``tie_break``; ``starts`` ascend."""
        full = int(np.searchsorted(starts, length - self._config.draft_tokens, side="right"))
        yield from self._tied(starts[:full], seed, length)
        # Behind these the context ends early: every later start leaves one token less or more, so there are no ties.
        yield from starts[full:].tolist()

    def _tied(self, starts: _Positions, seed: int, position: int) -> Iterator[int]:
        if len(starts) == 0:
            return
        if self._config.tie_break == "recent":
            yield from starts[::-1].tolist()
            return
        # Turning the list by a random amount makes every start equally likely to come first, and shuffles nothing.
        turn = _mix(seed, position) % len(starts) if self._config.tie_break == "random" else 0
        for i in range(len(starts)):
            yield int(starts[(turn + i) % len(starts)])


def _matches(context: IntArray, ngram_min: int, ngram_max: int) -> list[_Positions]:
    """For every n-gram length, longest first, the ascending positions right behind earlier occurrences of the suffix.

    ``context`` ``[t]`` int32. The suffix itself does not count, as nothing follows it: starts are at most ``t - 1``.
    """
    found: list[_Positions] = []
    if len(context) < 2:
        return found
    ends = np.flatnonzero(context[:-1] == context[-1])
    for n in range(1, ngram_max + 1):
        if n > 1:
            if n > len(context):
                break
            ends = ends[ends >= n - 1]
            ends = ends[context[ends - (n - 1)] == context[-n]]
        if len(ends) == 0:
            break
        if n >= ngram_min:
            found.append(ends + 1)
    return found[::-1]


def _mix(seed: int, position: int) -> int:
    """64 well-mixed bits out of (seed, position): the splitmix64 finaliser."""
    x = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
