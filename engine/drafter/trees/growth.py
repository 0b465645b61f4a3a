"""How a draft grows, one call of the drafter per depth; who runs the drafter, and on what cache, is the caller's.

The caller scores the rows of ``asks`` (at first the one behind the last committed token), has them chosen from
(``choose``), hands over the choices, and gets the candidates whose rows come next. Many drafts share a forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.drafter.trees.chain import Chain
from engine.drafter.trees.choice import Ask, Choice, draws
from engine.drafter.trees.levels import Levels
from engine.drafter.trees.static import StaticTree, static_shape
from engine.protocol import Branch
from engine.sampling.history import History
from engine.sampling.params import SamplingParams


class DraftGrowth(Protocol):
    """A draft in the making. Candidates are numbered, and keep their numbers."""

    def asks(self) -> list[Ask]:
        """What is to be chosen behind the rows to be scored now, those that ``take`` named last, in that order."""

    def take(self, choices: Sequence[Choice]) -> list[int]:
        """Grow by the choices, one per ask; the candidates whose rows come next, none when the draft is finished."""

    def token(self, candidate: int) -> int:
        """Its token."""

    def parent(self, candidate: int) -> int:
        """The candidate before it, ``ROOT`` for those behind the last committed token."""

    def branch(self, source: str) -> Branch | None:
        """What has been drafted, best first; None: nothing."""


def grow(
    params: SamplingParams,
    history: History | None,
    position: int,
    depth: int,
    n_nodes: int,
    beam: int,
    acceptance: tuple[float, ...] = (),
) -> DraftGrowth:
    """The kind of draft that suits a request.

    A chain where penalties have to know what comes before; a tree of independent draws for rejection sampling, as far
    as there are more nodes than depths; else the most probable tree.

    Args:
        params: the request's.
        history: of prompt and output, if penalties or ``min_tokens`` need it; changed as the draft grows.
        position: of the first drafted token in prompt + output.
        depth: the longest path, at least 1.
        n_nodes: at most so many, at least 1.
        beam: rows per depth behind the first, and children of a node.
        acceptance: that of ``static_shape``.
    """
    if history is not None or (draws(params) and n_nodes <= depth):
        return Chain(params, history, position, min(depth, n_nodes))
    if draws(params):
        return StaticTree(params, position, static_shape(depth, n_nodes, beam, acceptance))
    return Levels(params, position, depth, n_nodes, beam)
