"""Recording launches as CUDA graphs. **Never run on a GPU so far.**"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

_T = TypeVar("_T")


class GraphRecorder:
    """Graphs of a stage, which share one memory: no two run at the same time."""

    def __init__(self) -> None:
        self._first: torch.cuda.CUDAGraph | None = None

    def record(self, run: Callable[[], _T]) -> tuple[torch.cuda.CUDAGraph, _T]:
        """The launches of ``run``, which replay with its tensors, and what it returns.

        It runs once before, for real: kernels are compiled then, which cannot be recorded.
        """
        run()
        graph = torch.cuda.CUDAGraph()
        pool = None if self._first is None else self._first.pool()
        # thread_local: NCCL's watchdog asks for events meanwhile
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            outcome = run()
        self._first = self._first or graph
        return graph, outcome
