"""A stage's part of one step: announce it to the next stage, plan it, run the layers, send the outcome on.

The last stage sends its outcome to the router.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec
import torch
from torch import Tensor

from deployments.channels.channel import Channel
from deployments.pipeline.frames import (
    OutcomeFrame,
    StepFrame,
    encode_outcome,
    encode_step_frame,
    stamp,
    tensors_of,
)
from deployments.pipeline.tensor_header import TensorHeader
from deployments.stage.attention_rows import PeerLostError, RowAsker, RowKeeper
from deployments.stage.inbox import Arrived
from deployments.stage.progress import StepProgress
from deployments.stage.transports.base import Link, allocate
from engine.stage.base import Computing, StageLike
from engine.step import SequenceStart, Step, StepResult, WorkResult, decode_step, encode

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Current:
    """The step between ``prepare`` and ``serve``."""

    step: Step
    announced: tuple[TensorHeader, ...]  # tensors that the next stage expects, whatever happens
    error: str = ""
    seconds: float = 0.0  # that this stage has spent on it


class StepServer:
    """Serves the steps of one upstream after another, in one thread, which calls ``prepare`` and ``serve`` in turns.

    Args:
        stage: the layers and their cache.
        device: where activations go.
        keeper: keeps attention rows for the last stage.
        asker: asks other stages for theirs.
        progress: records when the stage is busy.
        fail: called when the device cannot serve another step.
    """

    def __init__(
        self,
        stage: StageLike,
        device: torch.device,
        keeper: RowKeeper,
        asker: RowAsker,
        progress: StepProgress,
        fail: Callable[[], None],
    ) -> None:
        self._stage = stage
        self._device = device
        self._keeper = keeper
        self._asker = asker
        self._progress = progress
        self._fail = fail
        self._rows_address = ""
        self._next: Link | None = None
        self._results: Channel | None = None
        self._starts: dict[int, SequenceStart] = {}  # of live sequences
        self._current: _Current

    def reset(self) -> None:
        """Forget every sequence: another upstream begins."""
        self._stage.reset()
        self._keeper.clear()
        self._starts.clear()

    def attach(self, following: Link | None, results: Channel | None, rows_address: str) -> None:
        """Set where outcomes go.

        Args:
            following: to the next stage; None on the last stage.
            results: to the router, for the last stage.
            rows_address: by which the last stage reaches this one.
        """
        self._next = following
        self._results = results
        self._rows_address = rows_address

    def prepare(self, frame: StepFrame) -> None:
        """Announce a step to the next stage, then do what this stage can do before the activations arrive.

        Raises:
            EOFError, OSError: the step is malformed, or the next stage is lost: the connection ends.
            torch.AcceleratorError: the device cannot serve another step.
        """
        began = time.perf_counter()
        self._progress.begin()
        try:
            step = decode_step(frame.step)
        except (msgspec.DecodeError, ValueError) as malformed:  # ValueError: from the bytes of an array
            raise EOFError(f"malformed step: {malformed}") from malformed
        self._note(step)
        self._current = _Current(step, self._known_tensors(step))
        if self._next is not None:
            self._next.send(encode_step_frame(frame.step, self._current.announced), [])
        try:
            self._stage.prepare(step)
        except torch.AcceleratorError:
            raise
        except Exception as failure:
            self._current.error = self._log_failure(failure)
        self._progress.end()
        self._current.seconds = time.perf_counter() - began

    def serve(self, arrived: Arrived) -> None:
        """Run the prepared step and send its outcome on; a step that fails is answered with its error.

        Raises:
            EOFError, OSError: the next stage is lost, or no peer takes results: the connection ends.
            PeerLostError: another stage is gone.
            torch.AcceleratorError: the device cannot serve another step.
        """
        began = time.perf_counter() - self._current.seconds
        self._progress.begin()
        error = arrived.outcome.error or self._current.error
        if self._next is None:
            self._answer(arrived, error, began)
        else:
            self._pass_on(self._next, arrived, error, began)

    def _answer(self, arrived: Arrived, error: str, began: float) -> None:
        """The last stage's part of a step, from verification to the router."""
        step, results = self._current.step, list[WorkResult]()
        if step.work and not error:
            try:
                results = self._stage.verify(self._stage.forward(step, arrived.activations))
                rows = self._stage.attention(results)
                results = self._asker.attach(step.step_id, results, rows, arrived.outcome.rows_at)
            except (torch.AcceleratorError, PeerLostError):
                raise  # neither the device nor the pipeline can serve the next step
            except Exception as failure:
                error, results = self._log_failure(failure), []
        if self._results is None:
            raise EOFError("no peer has connected with the role results")
        seconds = time.perf_counter() - began
        self._progress.end()
        stage_seconds = (*arrived.outcome.seconds, seconds)
        self._results.send(encode(StepResult(step.step_id, results, seconds, error, stage_seconds)))

    def _pass_on(self, following: Link, arrived: Arrived, error: str, began: float) -> None:
        """Every other stage's part of a step, from the layers to the next stage."""
        step, seconds = self._current.step, (*arrived.outcome.seconds, 0.0)  # ``stamp`` overwrites the last one
        outcome, tensors, computing = OutcomeFrame(seconds=seconds), list[Tensor](), None
        if step.work and not error:
            try:
                outcome, tensors, computing = self._run(step, arrived, seconds)
            except torch.AcceleratorError:
                raise
            except Exception as failure:
                error = self._log_failure(failure)
        if error:
            outcome = OutcomeFrame(self._current.announced, error=error, seconds=seconds)
            tensors = allocate(self._current.announced, self._device)
        header = encode_outcome(outcome)
        if computing is not None and not error:
            following.send(header, tensors, partial(self._finish, self._progress.leave_to_device(computing), header))
            return
        stamp(header, time.perf_counter() - began)
        self._progress.end()
        following.send(header, tensors)

    def _run(
        self, step: Step, arrived: Arrived, seconds: tuple[float, ...]
    ) -> tuple[OutcomeFrame, list[Tensor], Computing | None]:
        """Run the layers; returns the outcome, its tensors, and what the device still does for them."""
        activations, rows_at = self._stage.forward(step, arrived.activations), arrived.outcome.rows_at
        tensors, announced = tensors_of(activations), self._current.announced
        headers = tuple(map(TensorHeader.of, tensors))
        if announced not in ((), headers):
            raise RuntimeError(f"the stage has computed {headers} after it had announced {announced}")
        captured = self._stage.captured() if any(work.draw for work in step.work) else None
        if captured is not None:
            self._keeper.keep(step.step_id, captured)
            rows_at = (*rows_at, self._rows_address)
        outcome = OutcomeFrame(headers, activations.fused is not None, rows_at=rows_at, seconds=seconds)
        return outcome, tensors, self._stage.computing()

    def _finish(self, wait: Callable[[], float], header: bytearray) -> None:
        """Wait until the device is done with a step, and write its time into ``header``; called by the link."""
        try:
            stamp(header, wait())
        except torch.AcceleratorError:
            logger.exception("the stage cannot go on")
            self._fail()
            raise

    def _known_tensors(self, step: Step) -> tuple[TensorHeader, ...]:
        """Headers of what this stage will send for a step, if that is hidden states and nothing else; else empty."""
        needs = [self._starts[work.seq].needs for work in step.work if work.seq in self._starts]
        if not needs or self._next is None or any(need.hidden_layer is not None or need.drafter for need in needs):
            return ()
        n_rows = sum(len(work.tokens) + (0 if work.tree is None else len(work.tree)) for work in step.work)
        return (TensorHeader.of(self._stage.hidden_outline(n_rows)),)

    def _note(self, step: Step) -> None:
        """Remember the live sequences."""
        for seq in step.ends:
            self._starts.pop(seq, None)
        for start in step.starts:
            self._starts[start.seq] = start
            logger.debug("sequence %d begins", start.seq, extra={"request_id": start.request_id})

    def _log_failure(self, failure: Exception) -> str:
        """Log why the step failed, and return it as text. Whatever it is, only the step's sequences fail."""
        step = self._current.step
        requests = [self._starts[work.seq].request_id for work in step.work if work.seq in self._starts]
        logger.error("step %d failed", step.step_id, exc_info=failure, extra={"requests": requests})
        return f"{type(failure).__name__}: {failure}"
