"""Limits of batching; knows nothing of how they are kept."""

from __future__ import annotations

from dataclasses import dataclass

from engine.target_model.info import MAX_TREE
from engine.target_model.options import STEP_ROWS


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Limits of batching."""

    max_sequences: int = 64  # sequences that own KV blocks
    max_waiting: int = 256  # sequences in the queue behind them
    max_step_rows: int = STEP_ROWS  # rows (tokens and nodes) of one step
    prefill_chunk: int = 512  # rows of prompt per step
    n_micro_batches: int = 1  # pipeline stages: so many steps keep all of them busy
    max_stall: float = 0.1  # seconds that a step's rows of prompt may add to it while any sequence decodes
    prefix_cache: bool = True  # free blocks keep the beginnings of texts for newcomers that begin alike

    @property
    def max_tree_nodes(self) -> int:
        """Nodes of the largest tree: a stage has positions for it, and a step has room for it and its root."""
        return min(MAX_TREE, self.max_step_rows - 1)
