"""What a pipeline stage offers to the loop that drives it (``deployments.stage.worker``), and passes to the next.

``engine.stage.stage.Stage`` is the real one; a simulated one sleeps instead of computing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engine.step import Step, WorkResult

if TYPE_CHECKING:  # a router's frames have no tensors: it starts without torch
    from torch import Tensor

    from engine.stage.artefacts import AttentionRows, CapturedStep


@dataclass(slots=True)
class Activations:
    """What travels from stage to stage: hidden states, and what is made of tapped ones once a stage has tapped them."""

    hidden: Tensor  # [1, n_rows, hidden]
    tapped: Tensor | None = None  # [1, n_rows, hidden], or [1, n_rows, needs.hidden_dims] in fp32 once projected
    fused: Tensor | None = None  # fp32 [1, n_rows, ..], the drafter's relay (``engine.drafter.serving.relay``)


class Computing(Protocol):
    """What a device still does of a step when ``forward`` has returned."""

    def wait(self) -> float:
        """Block until the step's activations are true; returns the seconds that the device spent on it. Any thread may
        call it, several at once too; others run meanwhile. Raises what the device failed with."""


class StageLike(Protocol):
    """A range of layers and their part of the KV cache; one thread calls it."""

    @property
    def n_sequences(self) -> int:
        """Sequences the stage holds state of."""

    def reset(self) -> None:
        """Forget every sequence."""

    def hidden_outline(self, n_rows: int) -> Tensor:
        """A tensor on the device "meta" with shape and dtype of the hidden states that ``forward`` returns."""

    def prepare(self, step: Step) -> None:
        """Do what ``forward`` needs no activations for; harmless a second time.

        First admit the step: forget the sequences that ended, move others, learn of new ones and of new blocks. A step
        without work asks for no more, and a step that fails on an earlier stage must still be prepared.
        """

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        """Begin this stage's part of a step; ``incoming`` is None on the first stage. Prepares the step first.

        The device may still be computing when this returns: the activations have their shapes at once, their values
        when ``computing`` is over. Steps may follow each other without waiting: the device does them in order.
        """

    def computing(self) -> Computing | None:
        """What the device still does of the last ``forward``; None where that returns true activations, as on a CPU."""

    def verify(self, activations: Activations) -> list[WorkResult]:
        """Last stage, after ``forward``: answers in the order of the step's work. Waits for the device by itself."""

    def captured(self) -> CapturedStep | None:
        """What attention rows of the step are made from, for a stage that hears the results only later.

        Returns None when no sequence of the step needs a row of this stage.
        """

    def attention(self, results: Sequence[WorkResult]) -> AttentionRows:
        """Attention rows of this stage's heads, after ``verify``."""
