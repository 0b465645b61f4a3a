"""Suffix decoding (Oliaro et al. 2024, arXiv 2411.04975): drafts what followed the longest matches.

The published method (``mode="paper"``) looks up the suffixes of the context in the request's text and, by option, in
earlier outputs. From each suffix a draft grows best first by the product of branch frequencies. The draft with the
highest sum of path probabilities wins. The occurrences of the last token replace the published suffix tree.

By default the method is the text half of ``speculators.successors.speculator``, which mixes all lengths of match.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.best_first.lists import GrownTree, grow_tree
from engine.protocol import Branch, Needs, RequestView, Speculator
from engine.tree import IntArray
from speculators.method import Method, MethodContext
from speculators.ngrams.occurrences import Occurrences
from speculators.per_request import PerRequest
from speculators.settings import Settings, setting
from speculators.successors.config import TEXT, SuccessorConfig
from speculators.successors.speculator import Successors
from speculators.tenant_state import TenantState

DOCUMENT_END = -1  # after every earlier output: no match and no draft crosses it


@dataclass(frozen=True, slots=True)
class SuffixConfig(Settings):
    """Suffix decoding settings; all but ``mode`` apply to the published method."""

    mode: Literal["mixed", "paper"] = setting("mixed", "our mixture of match lengths, or the published method")
    max_match: int = setting(64, "paper: tokens of the longest match", at_least=1)
    draft_base: int = setting(1, "paper: a draft has at most base + factor x match tokens", at_least=1)
    draft_factor: float = setting(4.0, "paper: see draft_base", at_least=0)
    max_draft: int = setting(60, "paper: tokens of the longest draft", at_least=1)
    min_probability: float = setting(0.1, "paper: lowest path probability that is drafted", above=0, at_most=1)
    max_occurrences: int = setting(64, "paper: most recent occurrences of a suffix that are followed", at_least=1)
    history: int = setting(65536, "paper: tokens of earlier outputs kept per scope", at_least=0)
    shared: bool = setting(False, "paper: also search earlier outputs of the same scope")


class SuffixDecoding(PerRequest[Occurrences]):
    """The published method."""

    name = "suffix"
    needs = Needs()
    catches_up = True  # each draft adds the tokens that are not in the chains

    def __init__(self, config: SuffixConfig | None = None) -> None:
        super().__init__()
        self._config = config or SuffixConfig(mode="paper")
        self._earlier: TenantState[tuple[IntArray, Occurrences]] = TenantState()

    def new_state(self, view: RequestView) -> Occurrences:
        return Occurrences()

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return the best draft of all suffix lengths in the context and, by option, in earlier outputs."""
        context = view.context.view
        if len(context) == 0 or budget <= 0:
            return []
        expected, draft = self._best_draft(context, self.states[view.request_id], context, budget)
        if view.request.scope in self._earlier:
            other_expected, other = self._best_draft(*self._earlier[view.request.scope], context, budget)
            draft = other if other_expected > expected else draft
        return [Branch(draft.tokens, self.name, draft.parents, scores=draft.scores)] if draft.tokens else []

    def end(self, view: RequestView) -> None:
        """Keep the output for later requests of the scope, if it is shared."""
        super().end(view)
        output = view.context.view[view.n_prompt :].tolist()
        if self._config.shared and self._config.history and output:
            kept = self._earlier[view.request.scope][0].tolist() if view.request.scope in self._earlier else []
            tokens = [*kept, *output, DOCUMENT_END][-self._config.history :]
            self._earlier.keep(view.request.scope, (np.array(tokens, np.int32), Occurrences()))

    def _best_draft(
        self, text: IntArray, known: Occurrences, context: IntArray, budget: int
    ) -> tuple[float, GrownTree]:
        """Return the highest sum of path probabilities of all lengths of match, and its draft.

        A draft's limit of tokens and the rest of the text bound its sum. The highest bounds are tried first.
        """
        config = self._config
        lengths, starts = known.matches(text, context, config.max_match)
        bounds: list[tuple[int, int, int, list[int]]] = []  # bound of the sum; match; limit of tokens; starts
        for match in np.unique(lengths).tolist():
            followed = starts[lengths >= match][: config.max_occurrences].tolist()
            n_tokens = min(int(config.draft_base + config.draft_factor * match), config.max_draft, budget)
            bounds.append((min(n_tokens, len(text) - followed[-1]), match, n_tokens, followed))
        expected, best = 0.0, GrownTree([], [], [], [])
        for bound, _, n_tokens, followed in sorted(bounds, reverse=True):
            if bound <= expected:
                break
            draft = _grow(text, followed, n_tokens, config.min_probability)
            if sum(draft.reach) > expected:
                expected, best = sum(draft.reach), draft
        return expected, best


def _grow(text: IntArray, places: list[int], n_tokens: int, least: float) -> GrownTree:
    """Return up to ``n_tokens`` nodes of path probability ``least`` or more; ``places`` are the first tokens'."""

    def children(node: int, path: float, places: list[int]) -> list[tuple[int, float, list[int]]]:
        inside = [place for place in places if place < len(text)]
        following: dict[int, list[int]] = {}
        for token, place in zip(text[inside].tolist() if inside else (), inside, strict=True):
            following.setdefault(token, []).append(place + 1)
        following.pop(DOCUMENT_END, None)
        total = sum(map(len, following.values()))
        return [(token, len(after) / total, after) for token, after in following.items()]

    return grow_tree(children, places, n_tokens, least)


def _make(settings: SuffixConfig, context: MethodContext) -> Speculator:
    if settings.mode == "paper":
        return SuffixDecoding(settings)
    return Successors(context.options.settings_of(SuccessorConfig), (TEXT,))


SUFFIX = Method(
    name="suffix",
    factory=_make,
    description="what followed the longest matches of the last tokens in the request's text",
    source="arXiv 2411.04975",
    settings=SuffixConfig,
)
