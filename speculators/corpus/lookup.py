"""Drafting from a library of texts: what ``rest`` and ``spectra-retrieval`` share.

The longest suffix of the context that occurs is looked up, its continuations are counted with all their prefixes, and
the most frequent prefixes are the draft, a tree. A request may be allowed several indexes (its namespace's and the
shared): each is asked, and what they have is merged, the longest match first, the more specific index first among
equals.

Which indexes there are is asked anew for every draft: they are replaced while requests run. No text is kept here beyond
``UnigramCache``, which keeps it per index, so what one namespace may see reaches no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.tree import ROOT, IntArray
from retrieval_store.index.index import Continuations, Index, Library, Limits

MAX_KEPT = 4096  # answers over all indexes; about 3 KiB each
_LEAST = 1e-6  # a score is above 0, also where a longer match leaves nothing
_LONGEST = 16  # tokens of a suffix, and of a continuation
_AFTER_NODES = 64  # most frequent continuations of a single token that are remembered


@dataclass(frozen=True, slots=True)
class LookupConfig:
    """How a library is asked; every method has its own defaults.

    Raises:
        ConfigError: a value is out of range.
    """

    method: ClassVar[str] = "retrieval"

    suffix_max: int = 8  # tokens; the first suffix length tried
    suffix_min: int = 1  # tokens; the last one
    samples: int = 200  # occurrences counted per query, spread evenly over all of them
    draft_tokens: int = 10  # tokens of a continuation
    fill: bool = True  # where the longest match leaves budget: shorter ones, and what follows the last token alone
    prior: float = 6.0  # doubt in a share, in occurrences for each matching token; 0: shares as they are

    def __post_init__(self) -> None:
        if not 1 <= self.suffix_min <= self.suffix_max <= _LONGEST:
            raise ConfigError(
                f"{self.method}: need 1 <= suffix_min <= suffix_max <= {_LONGEST}, "
                f"got {self.suffix_min} and {self.suffix_max}"
            )
        if not 1 <= self.draft_tokens <= _LONGEST:
            raise ConfigError(f"{self.method}: draft_tokens must be 1 to {_LONGEST}, got {self.draft_tokens}")
        if self.samples < 1 or self.prior < 0:
            raise ConfigError(
                f"{self.method}: samples {self.samples} must be at least 1 and prior {self.prior} at least 0"
            )


class LibraryDrafter:
    """Drafts the likeliest continuations that the indexes of a request's namespace have.

    Args:
        name: of the method.
        library: hands out the indexes.
        config: settings.
    """

    needs = Needs()
    catches_up = True  # it hears nothing: indexes do not change

    def __init__(self, name: str, library: Library, config: LookupConfig) -> None:
        self.name = name
        self._library = library
        self._config = config
        self._after = UnigramCache(self._limits(1, 1, _AFTER_NODES))

    def begin(self, view: RequestView) -> None:
        """Nothing to remember."""

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        """One tree of at most ``budget`` nodes; nothing without a match, or without an index."""
        indexes = self._library.of(view.request.namespace) if budget > 0 else ()
        if not indexes:
            return []
        context = view.context.view[-self._config.suffix_max :]
        draft = RetrievalDraft()
        for found in self._longest_first(indexes, context, budget):
            draft.add(_within(found, view.vocab_size), self._config.prior, budget)
            if len(draft.tokens) >= budget:
                break
        return draft.branches(self.name)

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        """Nothing to learn: indexes do not change."""

    def end(self, view: RequestView) -> None:
        """Nothing to drop."""

    def _longest_first(self, indexes: Sequence[Index], context: IntArray, budget: int) -> Iterator[Continuations]:
        """What the indexes have, in the order in which it is merged; the caller stops when the budget is spent."""
        config = self._config
        limits = self._limits(config.suffix_max, config.suffix_min, budget)
        every = [index.query(context, limits) for index in indexes]
        matches = sorted((found for found in every if found is not None), key=lambda found: -found.match)
        if not config.fill:
            yield from (found for found in matches if found.match == matches[0].match)
            return
        yield from (found for found in matches if found.match > 1)
        for index, match in zip(indexes, every, strict=True):
            found = match if match is not None and match.match == 1 else self._after.ask(index, int(context[-1]))
            if found is not None:
                yield found

    def _limits(self, longest: int, shortest: int, nodes: int) -> Limits:
        return Limits(longest, shortest, self._config.samples, self._config.draft_tokens, nodes)


def _within(found: Continuations, vocab_size: int) -> Continuations:
    """Without tokens that the target does not have: a tokenizer may know more than the model, and embedding one of
    them would take the step down."""
    if max(found.tokens, default=0) < vocab_size:
        return found
    return found.without([token >= vocab_size for token in found.tokens])


class UnigramCache:
    """What follows a single token anywhere in an index: many occurrences to count, so the answers are kept.

    Answers belong to the index they came from and go with it: a request that may not ask an index never sees what that
    index said, and an index that a newer snapshot replaced is not kept alive from here.

    Args:
        limits: of a query; only single tokens are asked about.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._known: WeakKeyDictionary[Index, dict[int, Continuations | None]] = WeakKeyDictionary()

    def __len__(self) -> int:
        """Answers kept."""
        return sum(map(len, self._known.values()))

    def ask(self, index: Index, token: int) -> Continuations | None:
        """What follows ``token`` in ``index``; None if it does not occur there."""
        known = self._known.get(index)
        if known is None:
            known = self._known[index] = {}
        if token not in known:
            while len(self) >= MAX_KEPT:
                fullest = max(self._known.values(), key=len)
                del fullest[next(iter(fullest))]
            known[token] = index.query(np.array([token], np.int32), self._limits)
        return known[token]


@dataclass(slots=True)
class RetrievalDraft:
    """A growing tree with estimates of its nodes; parents precede children.

    A node's score estimates the probability that it is accepted once its parent was. A share ``count / total`` is
    trusted less the fewer occurrences it rests on and the fewer tokens matched, and what is added later only gets the
    probability that earlier matches leave.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    children: dict[tuple[int, int], int] = field(default_factory=dict)  # (parent, token) -> node
    left: dict[int, float] = field(default_factory=dict)  # parent -> probability that its children do not have

    def add(self, found: Continuations, prior: float, budget: int) -> None:
        """Merge continuations of a match no longer than the ones before, best first, up to ``budget`` nodes in all."""
        tokens, parents, scores, depths = self.tokens, self.parents, self.scores, self.depths
        children, left = self.children, self.left
        before = left.copy()
        counts, match = found.counts, found.match - 1
        places: list[int] = []
        n = len(tokens)
        for token, parent, count in zip(found.tokens, found.parents, counts, strict=True):
            at = ROOT if parent == ROOT else places[parent]
            node = children.get((at, token), n)
            if node == n:
                if n >= budget:
                    break
                children[at, token] = n
                n += 1
                depth = 1 if at == ROOT else depths[at] + 1
                # With every node of a path the match is one token longer.
                total = found.counted if parent == ROOT else counts[parent]
                score = before.get(at, 1.0) * count / (total + prior / (match + depth))
                left[at] = left.get(at, 1.0) - score
                tokens.append(token)
                parents.append(at)
                depths.append(depth)
                scores.append(score if score > _LEAST else _LEAST)
            places.append(node)

    def branches(self, source: str) -> list[Branch]:
        """The tree as a draft of ``source``; nothing without nodes."""
        return [Branch(self.tokens, source, parents=self.parents, scores=self.scores)] if self.tokens else []
