"""ANPD (Ou et al. 2024, arXiv 2404.08698): drafts the likely successors of the last tokens.

The published method drafts one token at a time: the most frequent successor of the longest context of 1 to N - 1 tokens
that occurs in the text. By default the same matches grow a tree. A match of ``m`` tokens before a token is
``level_weight ** m`` votes for it. The score of a token is its share of the votes times ``e / (e + escape)``, where
``e`` is the sum of all matches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from engine.best_first.lists import grow_tree
from engine.protocol import Branch, Needs, RequestView
from engine.tree import ROOT, IntArray
from speculators.method import Method
from speculators.ngrams.occurrences import Occurrences
from speculators.per_request import PerRequest
from speculators.settings import Settings, setting

Match = tuple[int, int]  # a position of the text, and how many tokens before it match the end of a path
Node = tuple[int, int, list[Match]]  # depth, token, matches


@dataclass(frozen=True, slots=True)
class AnpdConfig(Settings):
    """ANPD settings; ``AnpdConfig.paper()`` is the published method."""

    ngram: int = setting(5, "N: the longest context has N - 1 tokens", at_least=2, at_most=32)
    draft_tokens: int = setting(16, "K: tokens per path", at_least=1)
    branching: bool = setting(True, "draft a tree; the published method drafts one chain")
    max_nodes: int = setting(64, "tree: nodes per step", at_least=1)
    min_path: float = setting(0.001, "tree: lowest path probability that is drafted", at_least=0, below=1)
    level_weight: float = setting(4.0, "tree: votes of a match that is one token longer", at_least=1, at_most=1e6)
    escape: float = setting(1.5, "tree: matching tokens at which a share counts half", at_least=0)
    max_places: int = setting(32, "tree: matches used after the context, longest first", at_least=1)
    near_places: int = setting(8, "tree: matches used after a drafted token, recent ones added", at_least=0)
    near_path: float = setting(0.05, "tree: lowest path probability at which matches are added", at_least=0, below=1)
    prompt_window: int = setting(8192, "tree: last tokens of a long prompt that are learnt", at_least=0)

    @classmethod
    def paper(cls) -> AnpdConfig:
        return cls(draft_tokens=6, branching=False)


@dataclass(slots=True)
class AnpdState:
    """The text that one request has learnt: its context from position ``start`` on."""

    start: int
    known: Occurrences = field(default_factory=Occurrences)
    # Trees look at some twenty tokens a step: lists answer faster than calls of compiled code.
    text: list[int] = field(default_factory=list)
    places: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # after each occurrence


class Anpd(PerRequest[AnpdState]):
    """Drafts the tokens that the n-grams of the text make likely."""

    name = "anpd"
    needs = Needs()
    catches_up = True  # each draft learns the tokens that no earlier one has

    def __init__(self, config: AnpdConfig | None = None) -> None:
        super().__init__()
        self._config = config or AnpdConfig()
        self._votes = [self._config.level_weight**match for match in range(self._config.ngram)]

    def new_state(self, view: RequestView) -> AnpdState:
        window = self._config.prompt_window if self._config.branching else len(view.context)
        return AnpdState(max(len(view.context) - window, 0))

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return one tree of the most probable paths, or the published chain."""
        state = self.states[view.request_id]
        context = view.context.view[state.start :]
        if budget <= 0 or len(context) < 2:
            return []
        branch = self._tree(state, context, budget) if self._config.branching else self._chain(state, context, budget)
        return [branch] if branch.tokens else []

    def _chain(self, state: AnpdState, context: IntArray, budget: int) -> Branch:
        order = self._config.ngram - 1
        tail, tokens, scores = context[-order:], list[int](), list[float]()
        for _ in range(min(budget, self._config.draft_tokens)):
            matches, places = state.known.matches(context, tail, order)
            if not len(matches):
                break
            counts = Counter(context[places[matches == matches.max()]][::-1].tolist())
            # Of equals the token wins whose first occurrence is the latest, as in the authors' code.
            token, count = max(reversed(counts.items()), key=lambda item: item[1])
            tokens.append(token)
            scores.append(count / counts.total())
            tail = np.append(tail, np.int32(token))[-order:]
        return Branch(tokens, self.name, scores=scores)

    def _tree(self, state: AnpdState, context: IntArray, budget: int) -> Branch:
        config, votes, escape, near_path = self._config, self._votes, self._config.escape, self._config.near_path
        for place, token in enumerate(context[len(state.text) :].tolist(), len(state.text) + 1):
            state.places[token].append(place)
            state.text.append(token)
        text = state.text if len(state.text) == len(context) else state.text[: len(context)]  # an earlier context
        lengths, places = state.known.matches(context, context, config.ngram - 1)
        best = np.argsort(-lengths, kind="stable")[: config.max_places]
        matches = list(zip(places[best].tolist(), lengths[best].tolist(), strict=True))
        longest, last = config.ngram - 1, len(text) - 1

        def children(node: int, path: float, below: Node) -> list[tuple[int, float, Node]]:
            depth, token, matches = below
            if depth == config.draft_tokens:
                return []
            if path >= near_path and len(matches) < config.near_places and node != ROOT:
                matches = self._with_recent(matches, state.places[token], last)
            if len(matches) == 1:  # most nodes of real text
                place, match = matches[0]
                token = text[place]
                following = [(place + 1, match + 1 if match < longest else match)] if place < last else []
                return [(token, match / (match + escape), (depth + 1, token, following))]
            total, evidence = 0.0, 0
            shares: defaultdict[int, float] = defaultdict(float)
            found: defaultdict[int, list[Match]] = defaultdict(list)
            for place, match in matches:
                token, vote = text[place], votes[match]
                total, evidence = total + vote, evidence + match
                shares[token] += vote
                if place < last:
                    found[token].append((place + 1, match + 1 if match < longest else match))
            scale = evidence / (evidence + escape) / total if shares else 0.0
            return [(token, share * scale, (depth + 1, token, found[token])) for token, share in shares.items()]

        tree = grow_tree(children, (0, text[-1], matches), min(budget, config.max_nodes), config.min_path)
        return Branch(tree.tokens, self.name, tree.parents, scores=tree.scores)

    def _with_recent(self, matches: list[Match], recent: list[int], last: int) -> list[Match]:
        """Return up to ``near_places`` matches: those of the path, then recent places after the same token."""
        if len(recent) <= len(matches):
            return matches
        n, known = self._config.near_places, {place for place, _ in matches}
        added = [(place, 1) for place in recent[: -2 - n : -1] if place <= last and place not in known]
        return matches + added[: n - len(matches)]


ANPD = Method(
    name="anpd",
    factory=lambda settings, context: Anpd(settings),
    description="a tree of the most frequent n-grams of the request's text",
    source="arXiv 2404.08698",
    settings=AnpdConfig,
)
