"""Continuations of several matches, in one corpus or several, merged into one draft tree with estimates."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.protocol import Branch
from engine.tree import ROOT
from retrieval_store.index.index import Continuations

_LEAST = 1e-6  # a score is above 0, also where a longer match leaves nothing


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
