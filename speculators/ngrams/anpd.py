"""Adaptive n-gram parallel decoding, ANPD (Ou et al. 2024, arXiv 2404.08698).

The published method keeps one count table per order 2..N of the request's own text, updated with every accepted token,
and drafts ``K`` tokens one by one: each is the most frequent successor of the longest context (``N - 1`` tokens down to
one) that the tables know. ``AnpdConfig.paper()`` does that to the letter, with places instead of tables
(``speculators.ngrams.matches``).

By default the same counts grow a *tree*, best path first. A node's candidates are the tokens at all places that match
the end of its path; a place with match ``m`` votes with ``level_weight ** m``, so that long contexts outvote short ones
without silencing them. The share of the votes, times the confidence ``e / (e + escape)`` where ``e`` is the sum of all
matches there, is the node's score: with an escape of 1.5 about the measured frequency (``docs/methods/anpd.md``).
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.tree import ROOT
from speculators.method import Method
from speculators.ngrams.matches import NgramPlaces, Place, longest_matches

_Entry = tuple[float, int, int, int, float, int, list[Place]]  # -path probability, serial, token, parent, score, depth


@dataclass(frozen=True, slots=True)
class AnpdConfig:
    """ANPD settings; ``AnpdConfig.paper()`` is the published method.

    Raises:
        ConfigError: a value is out of range.
    """

    ngram: int = 5  # N: the longest context has N - 1 tokens
    draft_tokens: int = 16  # K, tokens per path
    branching: bool = True  # a tree where counts split; the paper drafts one chain
    max_nodes: int = 64  # per step, trees only
    min_path: float = 0.001  # trees: paths less probable than this are not drafted
    level_weight: float = 4.0  # trees: votes of a place whose match is one token longer
    escape: float = 1.5  # trees: how much evidence halves the doubt
    max_places: int = 32  # trees: places looked at behind the context, longest match first
    near_places: int = 8  # trees: places looked at behind a drafted token ...
    near_path: float = 0.05  # ... unless its path is less probable than this: then only those the path itself has
    prompt_window: int = 8192  # trees: last tokens of a long prompt that are learnt, about 0.1 us and 0.1 kB each

    def __post_init__(self) -> None:
        least = {"ngram": 2, "draft_tokens": 1, "max_nodes": 1, "level_weight": 1.0, "max_places": 1}
        least |= {"near_places": 0, "prompt_window": 0}
        for field, minimum in least.items():
            if getattr(self, field) < minimum:
                raise ConfigError(f"anpd: {field} must be at least {minimum}, got {getattr(self, field)}")
        if self.escape < 0:
            raise ConfigError(f"anpd: escape must be at least 0, got {self.escape}")
        if self.ngram > 32 or self.level_weight > 1e6:  # beyond, votes leave the range of a float
            raise ConfigError(f"anpd: need ngram <= 32 and level_weight <= 1e6, got {self.ngram}, {self.level_weight}")
        for field in ("min_path", "near_path"):
            if not 0.0 <= getattr(self, field) < 1.0:
                raise ConfigError(f"anpd: {field} must lie in 0..1, 1 excluded, got {getattr(self, field)}")

    @classmethod
    def paper(cls) -> AnpdConfig:
        """One chain of at most ``K`` tokens from orders 5 down to 2, ``K = 6``."""
        return cls(draft_tokens=6, branching=False)


class _State:
    """Everything known about one request."""

    __slots__ = ("places", "start")

    def __init__(self, start: int) -> None:
        self.places = NgramPlaces()
        self.start = start  # position in the context of the first token that is learnt


class Anpd:
    """Drafts the successors that the text's own n-grams make likely."""

    name = "anpd"
    needs = Needs()

    def __init__(self, config: AnpdConfig | None = None) -> None:
        self._config = config or AnpdConfig()
        self._states: dict[int, _State] = {}
        self._votes = [self._config.level_weight**match for match in range(self._config.ngram)]

    catches_up = True  # a draft learns all of the context that no earlier one has

    def begin(self, view: RequestView) -> None:
        """Learn the prompt, trees its last tokens."""
        window = self._config.prompt_window if self._config.branching else len(view.context)
        self._states[view.request_id] = _State(max(len(view.context) - window, 0))
        self._learn(view)

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """One tree of the most probable paths, or the published chain."""
        if budget <= 0 or len(view.context) < 2:
            return []
        self._learn(view)
        branch = self._tree(view, budget) if self._config.branching else self._chain(view, budget)
        return [branch] if branch.tokens else []

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Nothing to learn: the owner of the view has already appended the tokens."""

    def end(self, view: RequestView) -> None:
        """Drop the request's state."""
        self._states.pop(view.request_id, None)

    def _learn(self, view: RequestView) -> None:
        """Learn the tokens committed since the last call."""
        state = self._states[view.request_id]
        state.places.learn(view.context.view[state.start + len(state.places.text) :].tolist())

    def _chain(self, view: RequestView, budget: int) -> Branch:
        """The published draft: token by token, the most frequent successor of the longest known context."""
        order = self._config.ngram - 1
        context = view.context.view
        places = self._states[view.request_id].places
        tail = context[-order:].tolist()
        draft: list[int] = []
        scores: list[float] = []
        for _ in range(min(budget, self._config.draft_tokens)):
            matches = longest_matches(places, context, tail, len(context))
            if not matches:
                break
            token, share = _most_frequent([int(context[place]) for place, match in matches if match == matches[0][1]])
            draft.append(token)
            scores.append(share)
            tail = [*tail, token][-order:]
        return Branch(draft, self.name, scores=scores)

    def _tree(self, view: RequestView, budget: int) -> Branch:
        """The most probable paths, best first; every child comes after its parent."""
        config = self._config
        state = self._states[view.request_id]
        places = state.places
        context = view.context.view[state.start :]
        limit = min(budget, config.max_nodes)
        if len(context) == 0:  # a prompt window of 0 and no output yet
            return Branch((), self.name)
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        heap: list[_Entry] = []
        matches = longest_matches(places, context, context[1 - config.ngram :].tolist(), config.max_places)
        self._expand(heap, places.text, matches, ROOT, 1.0, 1)
        while heap and len(tokens) < limit:
            minus_path, _, token, parent, score, depth, matches = heappop(heap)
            node = len(tokens)
            tokens.append(token)
            parents.append(parent)
            scores.append(score)
            if depth < config.draft_tokens:
                if -minus_path >= config.near_path:
                    self._add_near(places, token, matches)
                self._expand(heap, places.text, matches, node, -minus_path, depth + 1)
        return Branch(tokens, self.name, parents, scores=scores)

    def _add_near(self, places: NgramPlaces, token: int, matches: list[Place]) -> None:
        """Complete what a drafted token inherits (matches of 2 and more) with the token's other, recent places."""
        behind = places.behind(token)
        wanted = self._config.near_places - len(matches)
        if wanted <= 0 or len(behind) <= len(matches):
            return
        known = {place for place, _ in matches}
        end = len(places.text)
        for place in reversed(behind):
            if place < end and place not in known:
                matches.append((place, 1))
                wanted -= 1
                if wanted == 0:
                    break

    def _expand(
        self, heap: list[_Entry], text: list[int], matches: list[Place], node: int, path: float, depth: int
    ) -> None:
        """Push the candidates behind ``node``, whose path has probability ``path``; the hottest lines of the method."""
        least = self._config.min_path
        votes = self._votes
        longest = len(votes) - 1
        last = len(text) - 1
        if len(matches) == 1:  # most nodes of a real text
            place, match = matches[0]
            score = match / (match + self._config.escape)
            if path * score >= least:
                behind = [(place + 1, match + 1 if match < longest else match)] if place < last else []
                heappush(heap, (-path * score, len(heap) + (node << 12), text[place], node, score, depth, behind))
            return
        total = 0.0
        evidence = 0
        found: dict[int, list[Place]] = {}
        shares: dict[int, float] = {}
        for place, match in matches:
            token = text[place]
            vote = votes[match]
            total += vote
            evidence += match
            if token in shares:
                shares[token] += vote
            else:
                shares[token] = vote
                found[token] = []
            if place < last:
                found[token].append((place + 1, match + 1 if match < longest else match))
        if not shares:
            return
        scale = evidence / (evidence + self._config.escape) / total
        for token, share in shares.items():
            score = share * scale
            probability = path * score
            if probability >= least:
                heappush(heap, (-probability, len(heap) + (node << 12), token, node, score, depth, found[token]))


def _most_frequent(successors: list[int]) -> tuple[int, float]:
    """The most frequent token and its share; ``successors`` most recent first, among equals the youngest wins.

    Youngest: whose first occurrence came last, as in the authors' code (the last of the sorted table entries).
    """
    counts: dict[int, int] = {}
    for token in reversed(successors):
        counts[token] = counts.get(token, 0) + 1
    best = max(counts.values())
    token = [token for token, count in counts.items() if count == best][-1]
    return token, best / len(successors)


ANPD = Method(
    name="anpd",
    factory=lambda settings, context: Anpd(settings),
    description="a tree of the text's own n-grams, by frequency",
    settings=AnpdConfig,
)
