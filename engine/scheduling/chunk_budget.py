"""How many rows of prompt a step may take without decoding coming to a halt. Knows step times, no sequences.

The promise: a step with a chunk takes at most ``max_stall`` seconds longer, through all stages, than it would without,
as far as the measured times foretell. So one chunk delays no token by more than ``max_stall``. In a pipeline it delays
the tokens of its own step on every stage, and the tokens of later steps while they wait for that step; no token is
delayed twice. When *every* step in flight carries a chunk, the whole round is longer by ``max_stall``, and the first of
these steps may make tokens late by twice as much, once. A step always takes one block of prompt, however slow, so that
every prompt comes to an end.

The promise rests on a rule of the batch builder: while other sequences decode, a prompt has one chunk in flight. A
prompt that has the pipeline for itself sends chunks of full size, one after the other. A sequence whose last chunk was
sent counts as decoding, so all of its full-size chunks come before its first token, and none between two tokens.
"""

from __future__ import annotations

import numpy as np

from engine.step_cost import StepCosts


class ChunkBudget:
    """Rows of prompt per step.

    Args:
        largest: rows of prompt in any step.
        smallest: rows that a step may always have.
        max_stall: seconds that prompt rows may add to a step while any sequence decodes.
        costs: step times through the whole pipeline; without times of prompt rows every step may have ``largest``.
    """

    def __init__(self, largest: int, smallest: int, max_stall: float, costs: StepCosts | None = None) -> None:
        self._largest = largest
        self._smallest = min(smallest, largest)
        self._max_stall = max_stall
        self._costs = costs if costs is not None and costs.prompts else None

    def rows(self, is_decoding: bool, n_rows: int, context: int) -> int:
        """The most rows of prompt for a step.

        Args:
            is_decoding: whether any sequence waits for its next token, or soon will.
            n_rows: rows of trees in the step.
            context: tokens of the prompt before the chunk, which attention reads too.
        """
        if not is_decoding or self._costs is None:
            return self._largest
        total = n_rows + np.arange(self._largest + 1)
        seconds = self._costs.prompt_seconds(context, total)
        n_fit = int(np.searchsorted(seconds - seconds[0], self._max_stall, side="right")) - 1
        return max(self._smallest, min(n_fit, self._largest))
