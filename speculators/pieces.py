"""How much of a long prompt a speculator learns in one call."""

from __future__ import annotations

from engine.protocol import Outcome

PIECE = 512  # tokens: the process that calls serves other requests, too


def piece_beside(outcome: Outcome) -> int:
    """Tokens to learn beside an outcome: as many as its chunk had, so that a prompt is learnt when it is read."""
    return max(PIECE, outcome.n_read)
