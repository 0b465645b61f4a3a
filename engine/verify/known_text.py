"""Verification where the target's text is known beforehand: the rule of greedy and coupled decoding on one-hot
predictions. Behind the committed text and behind every node on the known path the next known token is predicted; a node
off that path is never reached, so what would be predicted there plays no role.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.tree import ROOT, TokenTree
from engine.verify.rules import match


def follow(tree: TokenTree, future: Sequence[int]) -> tuple[list[int], list[int]]:
    """Walk a tree along ``future``: (committed tokens, accepted nodes).

    The tokens are the accepted path's and the bonus token, or the path's alone where ``future`` ends with it.
    """
    tokens: list[int] = []
    accepted: list[int] = []
    node = ROOT
    for token in future:
        tokens.append(token)
        child = match(tree, node, token)
        if child is None:
            break
        accepted.append(child)
        node = child
    return tokens, accepted
