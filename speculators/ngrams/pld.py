"""Prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding): what followed the same words before.

The last ``n`` tokens are searched in the context, from ``ngram_max`` down to ``ngram_min``; the tokens behind an
earlier occurrence are the draft. Two earlier occurrences of one n-gram differ in *recency* (where they are) and in
*length of continuation* (how many tokens follow, at most ``draft_tokens``; only occurrences close to the end have
fewer). The method ranks by length: in a loop with a short period the most recent occurrence would draft one period
only, an older one drafts ``draft_tokens``. Among equals the choice is random (or as ``tie_break`` says).

Occurrences of the last token are chained (``speculators.ngrams.occurrences``), so a lookup takes the same time behind
any length of context; the prompt is chained before the first draft, 0.1 ms for 10k tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from speculators.ngrams.occurrences import FIRST, LONGEST, RANDOM, RECENT, Occurrences, continuations
from speculators.node_counter import NodeCounter

# Of a token behind so many that match, accepted ones included: rounded between what came true at temperatures 0 and 0.8
# with a small chat model; those who use claims calibrate them.
CLAIMS = (0.0, 0.3, 0.55, 0.65, 0.75, 0.75, 0.8, 0.8, 0.85)
_MASK = (1 << 64) - 1
_TIE_BREAKS = {"random": RANDOM, "first": FIRST, "recent": RECENT}


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
        config = self._config
        known = self._known.get(view.request_id) or Occurrences()
        found = continuations(
            *known.chains(context),
            config.ngram_max,
            config.ngram_min,
            config.draft_tokens,
            _TIE_BREAKS[config.tie_break],
            np.uint64(_mix(view.request.params.seed, len(context))),
            1 if config.max_branches == 1 else len(context),  # of several, some may begin like others
        )
        for start, match in found.tolist():
            draft = context[start : start + config.draft_tokens].tolist()
            before = counter.n_nodes
            fits = counter.add(draft, budget)
            if counter.n_nodes > before:
                scores = [CLAIMS[min(match + depth, LONGEST)] for depth in range(fits)]
                branches.append(Branch(draft[:fits], self.name, scores=scores))
            if len(branches) == config.max_branches or counter.n_nodes >= budget:
                break
        return branches

    def repeated(self, view: RequestView, longest: int) -> int:
        """How many tokens at the end of the context, at most ``longest``, stand somewhere before in the same order."""
        known = self._known.get(view.request_id)
        return 0 if known is None or not len(view.context) else known.repeated(view.context.view, longest)

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Nothing to learn: the owner of the view has already appended the tokens."""

    def end(self, view: RequestView) -> None:
        """Drop what is known of the context."""
        self._known.pop(view.request_id, None)


def _mix(seed: int, position: int) -> int:
    """64 well-mixed bits out of (seed, position): the splitmix64 finaliser."""
    x = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
