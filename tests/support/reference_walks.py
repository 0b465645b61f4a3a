"""Walks over whole trees, one node at a time: the reference that ``engine.verify.batch`` is tested against."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.tree import ROOT, TokenTree
from engine.verify.rules import Decision, Row, match


def walk(tree: TokenTree, decide: Callable[[int], Decision]) -> tuple[list[int], list[int]]:
    """Follow decisions from the root until a bonus token: (accepted nodes, tokens including the bonus token)."""
    accepted: list[int] = []
    tokens: list[int] = []
    child: int | None = ROOT
    while child is not None:
        child, token = decide(child)
        tokens.append(token)
        if child is not None:
            accepted.append(child)
    return accepted, tokens


def walk_greedy(tree: TokenTree, scores: Row) -> tuple[list[int], list[int]]:
    """Greedy; ``scores`` ``[n_nodes + 1, vocab]`` in forward order; ties go to the lowest id."""

    def decide(node: int) -> Decision:
        token = int(scores[node + 1].argmax())
        return match(tree, node, token), token

    return walk(tree, decide)


def walk_coupled(tree: TokenTree, scores: Row, noise: Sequence[Row]) -> tuple[list[int], list[int]]:
    """``argmax(log p + gumbel)`` at every node; ``scores`` as above, ``noise[d]`` ``[vocab]`` for depth ``d``."""

    def decide(node: int) -> Decision:
        depth = 0 if node == ROOT else tree.depths[node]
        token = int((scores[node + 1] + noise[depth]).argmax())
        return match(tree, node, token), token

    return walk(tree, decide)
