"""REST: what a corpus says next (He et al. 2023; METHODS.md, sections 4 and 9).

The longest suffix of the context that occurs in the corpus is looked up, its continuations are counted with all their
prefixes, and the most frequent prefixes are the draft, a tree. As published (``RestConfig.paper``) suffixes of 16 down
to 2 tokens count and the first length with a hit provides the whole draft.

Ours differs in two ways. A long match has few occurrences, often one, and leaves most of the budget unused: the rest is
filled with what follows the last token alone, anywhere in the corpus. And the estimates that combinations choose nodes
by are not plain shares: ``count / total`` is trusted less the fewer occurrences it rests on and the fewer tokens
matched (on real answers, one occurrence behind two matching tokens is right one time in three, behind eight two times
in three), and what fills up only gets what the longer match leaves.

The corpus is an index that somebody else built (``retrieval_store``): unrefined for this method; the same queries serve
refined ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.tree import ROOT
from retrieval_store.index import Continuations, Index, Limits

_MAX_CACHED = 4096  # tokens whose continuations are remembered; about 3 KiB each
_LEAST = 1e-6  # a score is above 0, also where a longer match leaves nothing


@dataclass(frozen=True, slots=True)
class RestConfig:
    """REST settings; ``paper`` gives the published ones.

    Raises:
        ConfigError: a value is out of range.
    """

    suffix_max: int = 16  # tokens; the first suffix length tried
    suffix_min: int = 1  # tokens; the last one
    samples: int = 200  # occurrences counted per query, spread evenly over all of them
    draft_tokens: int = 10  # tokens of a continuation
    fill: bool = True  # with what follows the last token alone, where a longer match leaves budget
    prior: float = 6.0  # doubt in a share, in occurrences for each matching token; 0: shares as they are

    def __post_init__(self) -> None:
        if not 1 <= self.suffix_min <= self.suffix_max <= 16:
            raise ConfigError(
                f"rest: need 1 <= suffix_min <= suffix_max <= 16, got {self.suffix_min} and {self.suffix_max}"
            )
        if not 1 <= self.draft_tokens <= 16:
            raise ConfigError(f"rest: draft_tokens must be 1 to 16, got {self.draft_tokens}")
        if self.samples < 1 or self.prior < 0:
            raise ConfigError(f"rest: samples {self.samples} must be at least 1 and prior {self.prior} at least 0")

    @classmethod
    def paper(cls) -> RestConfig:
        """As published: suffixes of 16 to 2 tokens, 5,000 continuations, one match, nodes by count."""
        return cls(suffix_min=2, samples=5000, fill=False, prior=0.0)


@dataclass(slots=True)
class _Draft:
    """A growing tree with estimates of its nodes; parents precede children."""

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


class Rest:
    """Drafts the likeliest continuations that a corpus has.

    Args:
        index: of the corpus. One that belongs to a namespace is used for that namespace's requests only.
        config: settings.
    """

    name = "rest"
    needs = Needs()

    def __init__(self, index: Index, config: RestConfig | None = None) -> None:
        self._index = index
        self._config = config or RestConfig()
        self._after: dict[int, Continuations | None] = {}  # last token -> continuations; the index never changes

    def begin(self, request: RequestView) -> None:
        """Nothing to remember."""

    def propose(self, request: RequestView, budget: int) -> list[Branch]:
        """One tree of at most ``budget`` nodes; nothing without a match."""
        if budget <= 0 or self._index.namespace not in (None, request.namespace):
            return []
        config = self._config
        context = request.context.view[-config.suffix_max :]
        found = self._index.query(context, self._limits(config.suffix_max, config.suffix_min, budget))
        draft = _Draft()
        if found is not None:
            draft.add(found, config.prior, budget)
        if config.fill and len(draft.tokens) < budget and (found is None or found.match > 1):
            after = self._after_token(int(context[-1]))
            if after is not None:
                draft.add(after, config.prior, budget)
        if not draft.tokens:
            return []
        return [Branch(draft.tokens, self.name, parents=draft.parents, scores=draft.scores)]

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        """Nothing to learn: the corpus is what it is."""

    def end(self, request: RequestView) -> None:
        """Nothing to drop."""

    def _after_token(self, token: int) -> Continuations | None:
        """What follows a token anywhere: many occurrences to count, so the answer is remembered."""
        known = self._after
        if token not in known:
            if len(known) >= _MAX_CACHED:
                del known[next(iter(known))]
            known[token] = self._index.query(np.array([token], np.int32), self._limits(1, 1, 64))
        return known[token]

    def _limits(self, longest: int, shortest: int, nodes: int) -> Limits:
        return Limits(longest, shortest, self._config.samples, self._config.draft_tokens, nodes)
