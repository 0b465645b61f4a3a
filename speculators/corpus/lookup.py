"""Drafts from a library of texts; ``rest`` and ``spectra-retrieval`` share this code.

The most frequent continuations of the longest suffix of the context become a tree. The answers of several indexes are
merged: the longest match first, of equals that of the more specific index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, RequestView, Speculator
from engine.tree import ROOT, IntArray
from retrieval_store.index.index import Continuations, Index, Library, Limits
from speculators.settings import Settings, setting

MAX_CACHED = 4096  # answers for all indexes together; about 3 KiB each
_MIN_SCORE = 1e-6  # of a node to which longer matches leave no probability
_CACHED_NODES = 64  # most frequent continuations of a single token that are cached


@dataclass(frozen=True, slots=True)
class LookupConfig(Settings):
    """How a library is queried; each method has its own defaults."""

    suffix_max: int = setting(8, "tokens of the longest suffix looked up", at_least=1, at_most=16)
    suffix_min: int = setting(1, "tokens of the shortest suffix looked up", at_least=1)
    samples: int = setting(200, "occurrences counted per query, spread evenly over all of them", at_least=1)
    draft_tokens: int = setting(10, "tokens of a continuation", at_least=1, at_most=16)
    fill: bool = setting(True, "fill the budget with shorter matches, and with what follows the last token alone")
    prior: float = setting(6.0, "how much few occurrences lower a score; 0: scores are plain shares", at_least=0)

    def check(self) -> None:
        if self.suffix_min > self.suffix_max:
            raise ConfigError(f"suffix_min is {self.suffix_min}; it must be at most suffix_max, {self.suffix_max}")


class LibraryDrafter(Speculator):
    """Drafts the most frequent continuations in the indexes that the request's namespace may use."""

    needs = Needs()
    catches_up = True  # it keeps nothing per request

    def __init__(self, name: str, library: Library, config: LookupConfig) -> None:
        self.name = name
        self._library = library
        self._config = config
        self._answers: WeakKeyDictionary[Index, dict[int, Continuations | None]] = WeakKeyDictionary()  # to one token

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return one tree; nothing without a match or an index."""
        # The library replaces its indexes while requests run.
        indexes = self._library.of(view.request.namespace) if budget > 0 else ()
        if not indexes:
            return []
        context, size = view.context.view[-self._config.suffix_max :], view.vocab_size
        found = (
            # The target cannot embed ids that only the tokenizer has.
            one if max(one.tokens, default=0) < size else one.without([token >= size for token in one.tokens])
            for one in self._longest_first(indexes, context, budget)
        )
        branch = _merge(found, self.name, self._config.prior, budget)
        return [branch] if branch.tokens else []

    def _longest_first(self, indexes: Sequence[Index], context: IntArray, budget: int) -> Iterator[Continuations]:
        config = self._config
        limits = self._limits(config.suffix_max, config.suffix_min, budget)
        every = [index.query(context, limits) for index in indexes]
        matches = sorted((found for found in every if found is not None), key=lambda found: -found.match)
        if not config.fill:
            yield from (found for found in matches if found.match == matches[0].match)
            return
        yield from (found for found in matches if found.match > 1)
        for index, match in zip(indexes, every, strict=True):
            found = match if match is not None and match.match == 1 else self.after_token(index, int(context[-1]))
            if found is not None:
                yield found

    def after_token(self, index: Index, token: int) -> Continuations | None:
        """Return what follows ``token`` in ``index``; answers are cached until the index is released."""
        answers = self._answers.setdefault(index, {})
        if token not in answers:
            while sum(map(len, self._answers.values())) >= MAX_CACHED:
                fullest = max(self._answers.values(), key=len)
                del fullest[next(iter(fullest))]
            answers[token] = index.query(np.array([token], np.int32), self._limits(1, 1, _CACHED_NODES))
        return answers[token]

    def _limits(self, longest: int, shortest: int, nodes: int) -> Limits:
        return Limits(longest, shortest, self._config.samples, self._config.draft_tokens, nodes)


def _merge(every: Iterable[Continuations], source: str, prior: float, budget: int) -> Branch:
    """Return one tree of all continuations, up to ``budget`` nodes; ``every`` has the longest match first.

    A node's score estimates the probability that it is accepted once its parent was. The score is the node's share of
    the occurrences, lowered by ``prior``, times the probability that its siblings from longer matches leave.
    """
    tokens, parents, scores, depths = list[int](), list[int](), list[float](), [0]  # the root's depth comes first
    nodes: dict[tuple[int, int], int] = {}  # by parent and token
    left: dict[int, float] = {}  # by parent: probability that its children do not have
    for found in every:
        left_before, counts = left.copy(), found.counts
        merged: list[int] = []  # by node of ``found``: node of the tree
        for token, parent, count in zip(found.tokens, found.parents, counts, strict=True):
            above = ROOT if parent == ROOT else merged[parent]
            merged.append(nodes.get((above, token), len(tokens)))
            if merged[-1] == len(tokens):
                if len(tokens) == budget:
                    break
                nodes[above, token] = len(tokens)
                depths.append(depths[above + 1] + 1)
                n_matching = found.match - 1 + depths[-1]  # every node of a path makes the match one token longer
                total = found.counted if parent == ROOT else counts[parent]
                score = left_before.get(above, 1.0) * count / (total + prior / n_matching)
                left[above] = left.get(above, 1.0) - score
                tokens.append(token)
                parents.append(above)
                scores.append(score if score > _MIN_SCORE else _MIN_SCORE)
        if len(tokens) == budget:
            break
    return Branch(tokens, source, parents, scores=scores)
