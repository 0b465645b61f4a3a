"""A stage's part of one step: run the layers and pass the frame on; the last stage answers the router."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

import msgspec
import torch
from torch import Tensor

from deployments.pipeline.frames import encode_frame, stamp, tensors_of
from deployments.stage.attention_rows import PeerLostError, RowAsker, RowKeeper
from deployments.stage.inbox import Arrived
from deployments.stage.links.base import Link
from deployments.stage.progress import Progress
from deployments.transport.channel import Channel
from engine.stage.base import Computing, StageLike
from engine.step import Step, StepResult, WorkResult, decode_step, encode

logger = logging.getLogger(__name__)


class StepServer:
    """Serves the frames of one upstream after another, in one thread.

    Args:
        stage: the layers and their cache.
        keeper: keeps attention rows for the last stage.
        asker: asks other stages for theirs.
        progress: is told when steps begin and end.
        fail: called when the device cannot serve another step.
    """

    def __init__(
        self, stage: StageLike, keeper: RowKeeper, asker: RowAsker, progress: Progress, fail: Callable[[], None]
    ) -> None:
        self._stage = stage
        self._keeper = keeper
        self._asker = asker
        self._progress = progress
        self._fail = fail
        self._rows_address = ""
        self._next: Link | None = None
        self._results: Channel | None = None
        self._request_ids: dict[int, str] = {}  # of live sequences, for log lines

    def reset(self) -> None:
        """Forget every sequence: another upstream begins."""
        self._stage.reset()
        self._keeper.clear()
        self._request_ids.clear()

    def attach(self, following: Link | None, results: Channel | None, rows_address: str) -> None:
        """Where the upstream's frames go on.

        Args:
            following: to the next stage; None on the last stage.
            results: to the router, for the last stage.
            rows_address: by which the last stage reaches this one.
        """
        self._next = following
        self._results = results
        self._rows_address = rows_address

    def serve(self, arrived: Arrived) -> None:
        """Serve one frame; a step that fails is answered with its error.

        Raises:
            EOFError: the frame is malformed, or no peer takes results: the connection ends.
            PeerLostError: another stage is gone.
            torch.AcceleratorError: the device cannot serve another step.
        """
        began = time.perf_counter()
        frame = arrived.frame
        try:
            step = decode_step(frame.step)
        except (msgspec.DecodeError, ValueError) as wrong:  # ValueError: from the bytes of an array
            raise EOFError(f"malformed step: {wrong}") from wrong
        self._note(step)
        error, header, tensors = frame.error, bytearray(), list[Tensor]()
        answers: list[WorkResult] = []
        computing: Computing | None = None
        if not error:
            try:
                if self._next is None:
                    answers = self._answers(step, arrived)
                else:
                    header, tensors, computing = self._pass_on(step, arrived)
            except (torch.AcceleratorError, PeerLostError):
                raise  # neither the device nor the pipeline can serve the next step
            except Exception as failure:  # of any kind: only the sequences of this step fail
                extra = {"requests": [self._request_ids.get(work.seq, "") for work in step.work]}
                logger.exception("step %d failed", step.step_id, extra=extra)
                error = f"{type(failure).__name__}: {failure}"
        if error:
            self._stage.admit(step)  # the stages after a failed one too must drop what has ended
            header, tensors, answers = encode_frame(frame.step, None, error, (), (*frame.seconds, 0.0)), [], []
        seconds = time.perf_counter() - began
        if self._next is not None and computing is not None:
            ready = partial(self._computed, self._progress.leave_to_device(computing), header)
            self._next.send(header, tensors, ready)
            return
        self._progress.end()
        if self._next is not None:
            stamp(header, seconds)
            self._next.send(header, tensors)
        elif self._results is not None:
            self._results.send(encode(StepResult(step.step_id, answers, seconds, error, (*frame.seconds, seconds))))
        else:
            raise EOFError("no peer has connected with the role results")

    def _computed(self, wait: Callable[[], float], header: bytearray) -> None:
        """Called by the link: returns when the device is done with a step, whose ``header`` has its time then."""
        try:
            stamp(header, wait())
        except torch.AcceleratorError:
            logger.exception("the stage cannot go on")
            self._fail()
            raise

    def _note(self, step: Step) -> None:
        """Remember which requests the sequences belong to."""
        for seq in step.ends:
            self._request_ids.pop(seq, None)
        for start in step.starts:
            self._request_ids[start.seq] = start.request_id
            logger.debug("sequence %d begins", start.seq, extra={"request_id": start.request_id})

    def _pass_on(self, step: Step, arrived: Arrived) -> tuple[bytearray, list[Tensor], Computing | None]:
        """This stage's part of a step; returns a frame for the next stage, and what the device still does for it."""
        activations, rows_at, computing = None, arrived.frame.rows_at, None
        if not step.work:
            self._stage.admit(step)
        else:
            activations = self._stage.forward(step, arrived.activations)
            computing = self._stage.computing()
            captured = self._stage.captured() if any(work.draw for work in step.work) else None
            if captured is not None:
                self._keeper.keep(step.step_id, captured)
                rows_at = (*rows_at, self._rows_address)
        seconds = (*arrived.frame.seconds, 0.0)  # ``stamp`` overwrites the last one
        header = encode_frame(arrived.frame.step, activations, "", rows_at, seconds)
        return header, tensors_of(activations), computing

    def _answers(self, step: Step, arrived: Arrived) -> list[WorkResult]:
        """The last stage's part of a step."""
        if not step.work:
            self._stage.admit(step)
            return []
        answers = self._stage.verify(self._stage.forward(step, arrived.activations))
        return self._asker.attach(step.step_id, answers, self._stage.attention(answers), arrived.frame.rows_at)
