"""Limits of a step: how many sequences share it, and how many rows of prompt it takes. Knows step times, no sequences.

A pipeline of ``P`` stages takes ``T(b)`` seconds for a step of ``b`` sequences, ``s = T / P`` on each stage. Of ``n``
sequences ``min(n, P * b)`` are in flight at a time, so the sequence-steps per second are

    R(b) = min(n / (P * s(b)), b / s(b)) = min(n, P * b) / T(b)

The stages idle when ``b`` is too small for the pipeline to hold all sequences. Every sequence waits for the arithmetic
of the others when ``b`` is larger than necessary, and beyond ``ceil(n / P)`` a larger ``b`` only costs time.

A step with prompt rows takes at most ``max_stall`` seconds longer, through all stages, than without them, as far as the
measured step times predict. The batching policy keeps one chunk of a prompt in flight while other sequences decode, so
no token is delayed twice. If every step in flight carries a chunk, the first of them may delay tokens by twice as much,
once. A step always takes one block of prompt, so every prompt comes to an end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.step_cost import Seconds, StepCosts
from engine.target_model.info import MAX_TREE
from engine.target_model.options import STEP_ROWS

GOOD_ENOUGH = 0.985  # share of the best rate: a smaller micro-batch answers sooner, and measured times are noisy


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Limits of batching."""

    max_sequences: int = 64  # sequences that own KV blocks
    max_waiting: int = 256  # sequences in the queue
    max_step_rows: int = STEP_ROWS  # rows (tokens and nodes) of one step
    prefill_chunk: int = 512  # rows of prompt per step
    n_micro_batches: int = 1  # pipeline stages: as many steps keep all of them busy
    max_stall: float = 0.1  # seconds that a step's rows of prompt may add to it while any sequence decodes
    prefix_cache: bool = True  # free blocks keep prefixes for new sequences that begin alike

    @property
    def max_tree_nodes(self) -> int:
        """Nodes of the largest tree: a stage has positions for it, and a step has room for it and its root."""
        return min(MAX_TREE, self.max_step_rows - 1)


class StepLimits:
    """Chooses the size of a micro-batch and its rows of prompt.

    Args:
        options: limits.
        block_size: tokens per KV block; a step may always have one block of prompt.
        costs: step times through the whole pipeline; None: not measured, so sequences are split evenly, and prompts are
            read in full chunks.
    """

    def __init__(self, options: SchedulerOptions, block_size: int, costs: StepCosts | None = None) -> None:
        self._options = options
        self._smallest_chunk = min(block_size, options.prefill_chunk)
        self._costs = costs
        self._times: dict[int, Seconds] = {}  # rows per sequence -> seconds by micro-batch
        self._sizes: dict[tuple[int, int], int] = {}

    def micro_batch_size(self, n: int, rows: float) -> int:
        """Return the sequences per step (at least 1) when ``n`` decode with ``rows`` rows each on average."""
        n_stages = self._options.n_micro_batches
        if n <= n_stages and n_stages > 1:
            return 1
        even = -(-n // n_stages)
        if self._costs is None or even <= 1:
            return max(1, even)
        key = n, _rounded(rows)
        if key not in self._sizes:
            self._sizes[key] = self._best_size(self._costs, *key)
        return self._sizes[key]

    def _best_size(self, costs: StepCosts, n: int, rows: int) -> int:
        if rows not in self._times:
            self._times[rows] = costs.by_batch(max(n, self._options.max_sequences), rows)
        n_stages = self._options.n_micro_batches
        sizes = np.arange(1, -(-n // n_stages) + 1)
        rates = np.minimum(n, n_stages * sizes) / self._times[rows][: len(sizes)]
        return int(sizes[np.argmax(rates >= GOOD_ENOUGH * rates.max())])

    def prompt_rows(self, is_decoding: bool, n_rows: int, context: int) -> int:
        """Return the most rows of prompt for a step.

        Args:
            is_decoding: whether any sequence waits for its next token, or soon will.
            n_rows: rows of trees in the step.
            context: tokens of the prompt before the chunk, which attention reads too.
        """
        largest = self._options.prefill_chunk
        if not is_decoding or self._costs is None or not self._costs.prompts:
            return largest
        seconds = self._costs.prompt_seconds(context, n_rows + np.arange(largest + 1))
        n_fit = int(np.searchsorted(seconds - seconds[0], self._options.max_stall, side="right")) - 1
        return max(self._smallest_chunk, min(n_fit, largest))


def _rounded(rows: float) -> int:
    """Return 1, 2, 3, 4, 6, 8, 12, ...: precise enough for a micro-batch, and few enough to keep the times of each."""
    if rows < 2:
        return 1
    power = 1 << (int(rows).bit_length() - 1)
    return power if rows < 1.25 * power or power < 2 else power + power // 2 if rows < 1.75 * power else 2 * power
