"""How much of a long prompt a speculator learns per call."""

from __future__ import annotations

from engine.protocol import Outcome

PIECE = 512  # tokens; a call must be short, because the process serves other requests as well


def tokens_to_learn(outcome: Outcome) -> int:
    """Return how many tokens to learn with an outcome: at least as many as its prompt chunk had."""
    return max(PIECE, outcome.n_read)
