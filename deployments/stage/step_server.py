"""A stage's part of one step: admit it, announce it to the next stage, prepare it, run the layers, send the outcome.

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
    TensorHeader,
    encode_outcome,
    encode_step_frame,
    stamp,
    tensors_of,
)
from deployments.stage.attention_rows import PeerLostError, RowKeeper, RowRequester
from deployments.stage.inbox import Arrived, RouterInbox, StageInbox
from deployments.stage.progress import StepProgress
from deployments.stage.transports.base import Transport, allocate
from engine.errors import RankLostError
from engine.stage.base import Computing, StageLike
from engine.step import Step, StepResult, WorkResult, decode_step, encode

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _CurrentStep:
    """A step that this stage is serving."""

    step: Step
    announced: tuple[TensorHeader, ...]  # tensors that the next stage expects, even if the step fails
    error: str  # why this stage cannot run it; "": it can
    seconds: float  # that this stage has spent on it


class StepServer:
    """Serves the steps of one upstream after another, in one thread.

    Args:
        stage: the layers and their cache.
        device: where activations go.
        keeper: keeps this stage's attention rows for the last stage.
        requester: requests the rows of other stages.
        progress: records when the stage is busy.
        fail: called when the device cannot serve another step.
    """

    def __init__(
        self,
        stage: StageLike,
        device: torch.device,
        keeper: RowKeeper,
        requester: RowRequester,
        progress: StepProgress,
        fail: Callable[[], None],
    ) -> None:
        self._stage = stage
        self._device = device
        self._keeper = keeper
        self._requester = requester
        self._progress = progress
        self._fail = fail
        self._rows_address = ""
        self._next: Transport | None = None
        self._results: Channel | None = None

    def reset(self) -> None:
        """Forget every sequence: another upstream begins."""
        self._stage.reset()
        self._keeper.clear()

    def attach(self, following: Transport | None, results: Channel | None, rows_address: str) -> None:
        """Set where outcomes go.

        Args:
            following: to the next stage; None on the last stage.
            results: to the router, for the last stage.
            rows_address: by which the last stage reaches this one.
        """
        self._next = following
        self._results = results
        self._rows_address = rows_address

    def serve(self, inbox: RouterInbox | StageInbox) -> None:
        """Serve the next step of an inbox and send its outcome on; a step that fails is answered with its error.

        Raises:
            EOFError, OSError, msgspec.DecodeError: the step is malformed, a neighbour is lost, or no peer takes
                results: the connection ends.
            PeerLostError, RankLostError: another stage, or a rank of this one, is lost.
            torch.AcceleratorError: the device cannot serve another step.
        """
        current = self._begin(inbox.take_step())
        arrived = inbox.take_outcome()
        began = time.perf_counter() - current.seconds
        self._progress.begin()
        current.error = arrived.outcome.error or current.error
        if self._next is None:
            self._answer(current, arrived, began)
        else:
            self._pass_on(self._next, current, arrived, began)

    def _begin(self, frame: StepFrame) -> _CurrentStep:
        """Admit a step, announce it to the next stage, and prepare it while earlier stages compute."""
        began = time.perf_counter()
        self._progress.begin()
        try:
            step = decode_step(frame.step)
        except (msgspec.DecodeError, ValueError) as malformed:  # ValueError: from the bytes of an array
            raise EOFError(f"malformed step: {malformed}") from malformed
        for start in step.starts:
            logger.debug("sequence %d begins", start.seq, extra={"request_id": start.request_id})
        error = self._attempt(self._stage.admit, step)
        announced: tuple[TensorHeader, ...] = ()
        if self._next is not None:
            outline = self._stage.outline(step)
            announced = () if outline is None else (TensorHeader.of(outline),)
            self._next.send(encode_step_frame(frame.step, announced), [])
        if step.work and not error:
            error = self._attempt(self._stage.prepare, step)
        self._progress.end()
        return _CurrentStep(step, announced, error, time.perf_counter() - began)

    def _attempt(self, call: Callable[[Step], None], step: Step) -> str:
        """Call a method of the stage; returns why it failed, or ""."""
        try:
            call(step)
        except (torch.AcceleratorError, RankLostError):
            raise
        except Exception as failure:
            return self._log_failure(step, failure)
        return ""

    def _answer(self, current: _CurrentStep, arrived: Arrived, began: float) -> None:
        """The last stage's part of a step, from its layers to the router."""
        step, error, results = current.step, current.error, list[WorkResult]()
        if step.work and not error:
            try:
                results = self._stage.verify(self._stage.forward(step, arrived.activations))
                rows = self._stage.attention(results)
                results = self._requester.attach(step.step_id, results, rows, arrived.outcome.rows_at)
            except (torch.AcceleratorError, PeerLostError, RankLostError):
                raise  # neither the device nor the pipeline can serve the next step
            except Exception as failure:
                error, results = self._log_failure(step, failure), []
        if self._results is None:
            raise EOFError("no peer has connected with the role results")
        seconds = time.perf_counter() - began
        self._progress.end()
        stage_seconds = (*arrived.outcome.seconds, seconds)
        self._results.send(encode(StepResult(step.step_id, results, seconds, error, stage_seconds)))

    def _pass_on(self, following: Transport, current: _CurrentStep, arrived: Arrived, began: float) -> None:
        """Every other stage's part of a step, from its layers to the next stage."""
        step, error = current.step, current.error
        seconds = (*arrived.outcome.seconds, 0.0)  # ``stamp`` overwrites the last one
        outcome, tensors, computing = OutcomeFrame(seconds=seconds), list[Tensor](), None
        if step.work and not error:
            try:
                outcome, tensors, computing = self._run(current, arrived, seconds)
            except (torch.AcceleratorError, RankLostError):
                raise
            except Exception as failure:
                error = self._log_failure(step, failure)
        if error:
            outcome = OutcomeFrame(current.announced, error=error, seconds=seconds)
            tensors = allocate(current.announced, self._device)
        header = encode_outcome(outcome)
        if computing is not None and not error:
            following.send(header, tensors, partial(self._finish, self._progress.leave_to_device(computing), header))
            return
        stamp(header, time.perf_counter() - began)
        self._progress.end()
        following.send(header, tensors)

    def _run(
        self, current: _CurrentStep, arrived: Arrived, seconds: tuple[float, ...]
    ) -> tuple[OutcomeFrame, list[Tensor], Computing | None]:
        """Run the layers; returns the outcome, its tensors, and the device's unfinished work on them."""
        step, rows_at = current.step, arrived.outcome.rows_at
        activations = self._stage.forward(step, arrived.activations)
        tensors = tensors_of(activations)
        headers = tuple(map(TensorHeader.of, tensors))
        if current.announced not in ((), headers):
            raise RuntimeError(f"the stage has computed {headers} after it had announced {current.announced}")
        captured = self._stage.captured() if any(work.draw for work in step.work) else None
        if captured is not None:
            self._keeper.keep(step.step_id, captured)
            rows_at = (*rows_at, self._rows_address)
        outcome = OutcomeFrame(headers, activations.fused is not None, rows_at=rows_at, seconds=seconds)
        return outcome, tensors, self._stage.computing()

    def _finish(self, wait: Callable[[], float], header: bytearray) -> None:
        """Wait until the device is done with a step, and write its time into ``header``; called by the transport."""
        try:
            stamp(header, wait())
        except torch.AcceleratorError:
            logger.exception("the stage cannot go on")
            self._fail()
            raise

    def _log_failure(self, step: Step, failure: Exception) -> str:
        """Log why a step failed, and return the reason. Only the step's sequences fail."""
        # If the step was not admitted, the stage does not know the sequences that start in it.
        requests = sorted({*self._stage.request_ids(step), *(start.request_id for start in step.starts)})
        logger.error("step %d failed", step.step_id, exc_info=failure, extra={"requests": requests})
        return f"{type(failure).__name__}: {failure}"
