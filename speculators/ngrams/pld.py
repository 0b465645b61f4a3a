"""Prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding): copies what followed an earlier match.

Matches of the last ``ngram_max`` tokens come first, then shorter ones down to ``ngram_min``. An occurrence that
``draft_tokens`` tokens follow comes before one close to the end, which would draft one period of a loop only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.errors import ConfigError
from engine.protocol import Branch, RequestView
from engine.sampling.keys import GOLDEN64, mix64
from speculators.method import Method
from speculators.ngrams.occurrences import MAX_SCORED_MATCH, ChainedText, continuations
from speculators.node_counter import NodeCounter
from speculators.settings import Settings, setting

# Probability that the target accepts a token after so many matching ones, measured at temperatures 0 and 0.8.
MATCH_SCORES = (0.0, 0.3, 0.55, 0.65, 0.75, 0.75, 0.8, 0.8, 0.85)


@dataclass(frozen=True, slots=True)
class NgramConfig(Settings):
    """Which matches of the last tokens are copied."""

    ngram_max: int = setting(3, "tokens of the longest match", at_least=1)
    ngram_min: int = setting(1, "tokens of the shortest match", at_least=1)
    draft_tokens: int = setting(10, "tokens copied after a match", at_least=1)

    def check(self) -> None:
        if self.ngram_min > self.ngram_max:
            raise ConfigError(f"ngram_min is {self.ngram_min}; it must be at most ngram_max, {self.ngram_max}")


@dataclass(frozen=True, slots=True)
class PldConfig(NgramConfig):
    """Prompt lookup settings; the defaults are the published method's."""

    max_branches: int = setting(1, "distinct continuations per step; the published method has 1", at_least=1)
    tie_break: Literal["random", "first", "recent"] = setting("random", "which of equal continuations is drafted")


class PromptLookup(ChainedText):
    """Drafts what followed earlier occurrences of the last tokens, longest match first."""

    name = "pld"

    def __init__(self, config: PldConfig | None = None) -> None:
        super().__init__()
        self._config = config or PldConfig()

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        context = view.context.view
        if budget <= 0 or len(context) < 2:
            return []
        config = self._config
        found = continuations(
            *self.states[view.request_id].chains(context),
            config.ngram_max,
            config.ngram_min,
            config.draft_tokens,
            config.tie_break == "recent",
            np.uint64(_random_bits(view.request.params.seed, len(context)) if config.tie_break == "random" else 0),
            1 if config.max_branches == 1 else len(context),  # of several, some may begin like others
        )
        counter, branches = NodeCounter(), list[Branch]()
        for start, match in found.tolist():
            draft = context[start : start + config.draft_tokens].tolist()
            n_before = counter.n_nodes
            n_fit = counter.add(draft, budget)
            if counter.n_nodes > n_before:
                scores = [MATCH_SCORES[min(match + depth, MAX_SCORED_MATCH)] for depth in range(n_fit)]
                branches.append(Branch(draft[:n_fit], self.name, scores=scores))
            if len(branches) == config.max_branches or counter.n_nodes >= budget:
                break
        return branches

    def repeated(self, view: RequestView, longest: int) -> int:
        """Return how many tokens at the end of the context, at most ``longest``, occur before in the same order."""
        known, context = self.states.get(view.request_id), view.context.view
        if known is None or not len(context):
            return 0
        return int(known.matches(context, context, longest)[0].max(initial=0))


def _random_bits(seed: int, position: int) -> int:
    return mix64(seed * GOLDEN64 + position * 0xD1B54A32D192ED03 + 0xC4F46BE25A6A6404)


PLD = Method(
    name="pld",
    factory=lambda settings, context: PromptLookup(settings),
    description="copies what followed the longest earlier match of the last tokens",
    source="github.com/apoorvumang/prompt-lookup-decoding",
    settings=PldConfig,
)
