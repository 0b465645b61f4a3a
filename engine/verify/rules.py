"""Verification rules: which drafted child of a node a target's distribution accepts.

Vocabulary:

* **accepted**: a drafted node whose token was drawn from the target; the accepted nodes form a path from the root.
* **bonus**: the token drawn at the last accepted node (or the root) that no child carries; every step has one,
  unless the text ends on an accepted node.

Pure functions over NumPy rows; randomness comes in as an object, so that tests can enumerate every outcome.

Sources: Algorithms 3 and 4 of SPECTRA (Le et al., 2025; greedy, and one-hot candidates after SpecInfer); Leviathan et
al. (2023) and Algorithm 1 of ParallelSpec (arXiv 2410.05589; drafts with a distribution); Daliri et al. (2024;
coupled).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.sampling.noise import Randomness
from engine.tree import ROOT, TokenTree

Row = npt.NDArray[Any]  # [vocab], fp64 where probabilities are meant
Decision = tuple[int | None, int]  # (accepted child or None, its token or the bonus token)


def match(tree: TokenTree, node: int, token: int) -> int | None:
    """Return the first child of ``node`` that carries ``token``: the greedy and the coupled rule."""
    for child in tree.children[node + 1]:
        if tree.tokens[child] == token:
            return child
    return None


def walk_text(tree: TokenTree, text: Sequence[int]) -> tuple[list[int], list[int]]:
    """Verify greedily against the target's known next tokens ``text``; return (committed tokens, accepted nodes).

    The tokens are the accepted path's and the bonus token, or the path's alone where ``text`` ends with it.
    """
    tokens: list[int] = []
    accepted: list[int] = []
    node = ROOT
    for token in text:
        tokens.append(token)
        child = match(tree, node, token)
        if child is None:
            break
        accepted.append(child)
        node = child
    return tokens, accepted


def decide_rejection(p: Row, tree: TokenTree, node: int, random: Randomness) -> Decision:
    """Accept one child of ``node`` or draw the bonus token, so that the token's distribution is exactly ``p``.

    Children are tried in drafting order. One with a draft distribution ``q`` is accepted with ``min(1, p/q)``, and
    its rejection leaves ``norm(max(0, p - q))``; a one-hot one is accepted with ``p``, and its rejection leaves
    ``norm(p without it)`` (the same rule for a ``q`` of all mass on one token).

    Args:
        p: the target's distribution after ``node``, ``[vocab]`` fp64, not changed; any positive sum will do.
        tree: the drafted tree.
        node: the accepted node, or ``ROOT``.
        random: decides.
    """
    residual = p / p.sum()
    for child in tree.children[node + 1]:
        token = tree.tokens[child]
        q = _draft_row(tree, child)
        mass = 1.0 if q is None else float(q[token])
        if residual[token] > 0.0 and random.accept(min(1.0, float(residual[token]) / mass)):
            return child, token
        residual = _reject(residual, token, q)
    return None, random.draw(residual)


def _draft_row(tree: TokenTree, child: int) -> Row | None:
    """Return the distribution ``[vocab]`` that ``child`` was drawn from, ``None`` for a one-hot proposal.

    A row that gives its own token no mass cannot have drawn it: the token then counts as one-hot.
    """
    if tree.q is None or not tree.q[child, tree.tokens[child]] > 0.0:
        return None
    row: Row = tree.q[child].astype(np.float64)
    row /= row.sum()  # fp32 rows sum to 1 within 1e-7 only
    return row


def _reject(residual: Row, token: int, q: Row | None) -> Row:
    """Return the target's distribution after ``token`` was rejected, ``[vocab]``, normalised."""
    if q is None:
        left = residual.copy()
        left[token] = 0.0
    else:
        left = np.maximum(residual - q, 0.0)
    total = left.sum()
    # Nothing left means acceptance was certain up to rounding: the residual is then as exact as possible.
    return left / total if total > 0.0 else residual
