"""CUDA graphs that are calls: what a recorded graph would do with a step.

No graph is recorded on a CPU. Here one is a call that is made again with the tensors of its recording, so that what
stands on the host (sizes, numbers of programs) is that of the step that was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from engine.cuda.recorder import Recorder


class CallAgain:
    """A graph that is a call."""

    n_graphs = n_replays = 0

    def __init__(self) -> None:
        CallAgain.n_graphs += 1
        self.call: Callable[[], object]

    def pool(self) -> object:
        """The memory that all of a recorder share: the first one's."""
        return self

    def replay(self) -> None:
        """As often as wanted."""
        CallAgain.n_replays += 1
        self.call()


def call_again(patch: pytest.MonkeyPatch) -> None:
    """Graphs are such calls from now on, and none was made so far."""
    record = Recorder.record
    CallAgain.n_graphs = CallAgain.n_replays = 0

    @contextmanager
    def recording(graph: CallAgain, pool: object, capture_error_mode: str) -> Iterator[None]:
        assert pool is None or isinstance(pool, CallAgain)
        assert pool is not graph
        yield

    def record_call(self: Recorder, run: Callable[[], Any]) -> tuple[Any, Any]:
        graph, outcome = record(self, run)

        def again() -> None:
            for place, made in zip(outcome or (), run() or (), strict=True):
                place.copy_(made)

        graph.call = again  # type: ignore[attr-defined]
        return graph, outcome

    patch.setattr(torch.cuda, "CUDAGraph", CallAgain)
    patch.setattr(torch.cuda, "graph", recording)
    patch.setattr(Recorder, "record", record_call)
