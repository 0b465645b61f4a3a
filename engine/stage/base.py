"""The interface of a pipeline stage to the loop that drives it (``deployments.stage.worker``), and its activations.

``engine.stage.stage.Stage`` is the real one; a simulated one sleeps instead of computing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engine.step import Step, WorkResult

if TYPE_CHECKING:  # a router's frames have no tensors: it starts without torch
    from torch import Tensor

    from engine.stage.artefacts import AttentionRows, Captured


@dataclass(slots=True)
class Activations:
    """Tensors that one stage passes to the next: hidden states, and those of tapped layers."""

    hidden: Tensor  # [1, n_rows, hidden]
    tapped: Tensor | None = None  # [1, n_rows, hidden], or [1, n_rows, needs.hidden_dims] in fp32 once projected
    fused: Tensor | None = None  # fp32 [1, n_rows, ..], of the drafter's relay (``engine.drafter.serving.relay``)


class Computing(Protocol):
    """The device's unfinished work on a step when ``forward`` has returned."""

    def wait(self) -> float:
        """Block until the step's activations are computed; returns the seconds that the device spent on it.

        Several threads may call it at once, and others run meanwhile. Raises the device's error.
        """


class StageLike(Protocol):
    """A range of layers and their part of the KV cache; one thread calls it."""

    @property
    def n_sequences(self) -> int:
        """Sequences the stage holds state of."""

    def reset(self) -> None:
        """Remove every sequence."""

    def request_ids(self, step: Step) -> list[str]:
        """Request ids of the step's sequences that the stage knows, for log messages."""

    def outline(self, step: Step) -> Tensor | None:
        """A tensor on the device "meta" with shape and dtype of the hidden states that an admitted step will return.

        None where the step returns more than hidden states, or the stage knows none of its sequences.
        """

    def admit(self, step: Step) -> None:
        """Remove the sequences that ended, move and add sequences, and extend block tables: once for every step.

        Call it before anything else that may fail. Every stage admits a step, also one without work and one that fails
        on another stage: the next steps of its sequences, and of sequences that share their blocks, rely on it.
        """

    def prepare(self, step: Step) -> None:
        """Do the part of an admitted step with work that needs no activations."""

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        """Begin this stage's part of a prepared step; ``incoming`` is None on the first stage.

        The device may still compute when this returns: the activations have their shapes at once, and their values once
        ``computing`` is over. Steps may follow each other without waiting: the device runs them in order.
        """

    def computing(self) -> Computing | None:
        """The device's unfinished work on the last ``forward``; None if its activations are computed, as on a CPU."""

    def verify(self, activations: Activations) -> list[WorkResult]:
        """Last stage, after ``forward``: walk all trees; returns the results of the step's work, in order."""

    def captured(self) -> Captured | None:
        """Data to compute the step's attention rows from later, when another stage knows the results.

        None when no sequence of the step needs a row of this stage.
        """

    def attention(self, results: Sequence[WorkResult]) -> AttentionRows:
        """Attention rows of this stage's heads, fp32 ``[n_positions]`` each, after ``verify``.

        Keyed by (sequence, place of the head in its needs); empty if no sequence needs any.
        """
