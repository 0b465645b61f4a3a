"""Drafts from a library of texts; ``rest`` and ``spectra-retrieval`` share this code.

The longest suffix of the context that occurs is looked up, and the most frequent prefixes of its continuations become a
tree. If a request may use several indexes (its namespace's and the shared ones), their answers are merged: the longest
match first, the more specific index first among equals.

The library is asked for its indexes before every draft, because they are replaced while requests run.
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
        self._cache = UnigramCache(self._limits(1, 1, _CACHED_NODES))

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """Return one tree; nothing without a match or an index."""
        indexes = self._library.of(view.request.namespace) if budget > 0 else ()
        if not indexes:
            return []
        context = view.context.view[-self._config.suffix_max :]
        found = (_without_unknown(one, view.vocab_size) for one in self._longest_first(indexes, context, budget))
        branch = _merge(found, self.name, self._config.prior, budget)
        return [branch] if branch.tokens else []

    def _longest_first(self, indexes: Sequence[Index], context: IntArray, budget: int) -> Iterator[Continuations]:
        """Yield what the indexes have, the longest match first."""
        config = self._config
        limits = self._limits(config.suffix_max, config.suffix_min, budget)
        every = [index.query(context, limits) for index in indexes]
        matches = sorted((found for found in every if found is not None), key=lambda found: -found.match)
        if not config.fill:
            yield from (found for found in matches if found.match == matches[0].match)
            return
        yield from (found for found in matches if found.match > 1)
        for index, match in zip(indexes, every, strict=True):
            found = match if match is not None and match.match == 1 else self._cache.query(index, int(context[-1]))
            if found is not None:
                yield found

    def _limits(self, longest: int, shortest: int, nodes: int) -> Limits:
        return Limits(longest, shortest, self._config.samples, self._config.draft_tokens, nodes)


def _without_unknown(found: Continuations, vocab_size: int) -> Continuations:
    """Return the continuations without ids that the tokenizer has and the target lacks: embedding them would fail."""
    if max(found.tokens, default=0) < vocab_size:
        return found
    return found.without([token >= vocab_size for token in found.tokens])


def _merge(every: Iterable[Continuations], source: str, prior: float, budget: int) -> Branch:
    """Return one tree of all continuations, up to ``budget`` nodes; ``every`` has the longest match first.

    A node's score estimates the probability that it is accepted once its parent was. The score is the node's share of
    the occurrences, lowered by ``prior``, times the probability that its siblings from longer matches leave.
    """
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    depths: list[int] = []
    nodes: dict[tuple[int, int], int] = {}  # by parent and token
    left: dict[int, float] = {}  # by parent: probability that its children do not have
    n = 0
    for found in every:
        left_before = left.copy()
        merged: list[int] = []  # by node of ``found``: node of the tree
        counts = found.counts
        for token, parent, count in zip(found.tokens, found.parents, counts, strict=True):
            above = ROOT if parent == ROOT else merged[parent]
            node = nodes.get((above, token), n)
            merged.append(node)
            if node == n:
                if n == budget:
                    break
                nodes[above, token] = n
                n += 1
                depth = 1 if above == ROOT else depths[above] + 1
                total = found.counted if parent == ROOT else counts[parent]
                n_matching = found.match - 1 + depth  # every node of a path makes the match one token longer
                score = left_before.get(above, 1.0) * count / (total + prior / n_matching)
                left[above] = left.get(above, 1.0) - score
                tokens.append(token)
                parents.append(above)
                depths.append(depth)
                scores.append(score if score > _MIN_SCORE else _MIN_SCORE)
        if n == budget:
            break
    return Branch(tokens, source, parents, scores=scores)


class UnigramCache:
    """Keeps what follows single tokens in an index, which has many occurrences to count.

    An answer is dropped with its index: requests that may not use the index never get it, and an index that a newer
    snapshot replaced is released.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._answers: WeakKeyDictionary[Index, dict[int, Continuations | None]] = WeakKeyDictionary()

    def __len__(self) -> int:
        return sum(map(len, self._answers.values()))

    def query(self, index: Index, token: int) -> Continuations | None:
        """Return what follows ``token`` in ``index``; None if it does not occur there."""
        answers = self._answers.get(index)
        if answers is None:
            answers = self._answers[index] = {}
        if token not in answers:
            while len(self) >= MAX_CACHED:
                fullest = max(self._answers.values(), key=len)
                del fullest[next(iter(fullest))]
            answers[token] = index.query(np.array([token], np.int32), self._limits)
        return answers[token]
