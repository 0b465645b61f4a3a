"""CUDA graphs on a CPU: a graph calls its function again with the tensors of its recording.

Sizes and numbers of programs are those of the recorded step, as in a real graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from engine.cuda.graphs import GraphRecorder


class CallAgain:
    n_graphs = n_replays = 0

    def __init__(self) -> None:
        CallAgain.n_graphs += 1
        self.call: Callable[[], object]

    def pool(self) -> object:
        return self

    def replay(self) -> None:
        CallAgain.n_replays += 1
        self.call()


def call_again(patch: pytest.MonkeyPatch) -> None:
    """Replace CUDA graphs from now on; counts start at 0."""
    record = GraphRecorder.record
    CallAgain.n_graphs = CallAgain.n_replays = 0

    @contextmanager
    def recording(graph: CallAgain, pool: object, capture_error_mode: str) -> Iterator[None]:
        assert pool is None or isinstance(pool, CallAgain)
        assert pool is not graph
        yield

    def record_call(self: GraphRecorder, run: Callable[[], Any]) -> tuple[Any, Any]:
        graph, outcome = record(self, run)

        def again() -> None:
            for place, made in zip(outcome or (), run() or (), strict=True):
                place.copy_(made)

        graph.call = again  # type: ignore[attr-defined]
        return graph, outcome

    patch.setattr(torch.cuda, "CUDAGraph", CallAgain)
    patch.setattr(torch.cuda, "graph", recording)
    patch.setattr(GraphRecorder, "record", record_call)
