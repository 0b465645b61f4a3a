"""The inbox of a stage: frames of its upstream, received while the loop computes.

Small frames wait in the socket's own buffer, and the loop reads them itself: to be woken by another thread would take
longer. Once the upstream sends large tensors, a thread receives them, a few steps ahead of the loop.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from deployments.channels.channel import Channel
from deployments.pipeline.frames import OutcomeFrame, StepFrame, activations_of, decode_outcome, decode_step_frame
from deployments.stage.transports.base import Transport
from deployments.stage.transports.sockets import AT_ONCE, SocketTransport
from engine.stage.base import Activations

READ_AHEAD = 2  # steps


class Arrived(NamedTuple):
    """An outcome and the activations that came with it."""

    outcome: OutcomeFrame
    activations: Activations | None


class RouterInbox:
    """Steps of a router, straight from the channel: no stage has run them yet. Has the methods of ``StageInbox``."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def take_step(self) -> StepFrame:
        """As ``StageInbox.take_step``."""
        frame = decode_step_frame(self._channel.receive())
        if frame.tensors:
            raise EOFError("malformed frame: a router announced tensors")
        return frame

    def take_outcome(self) -> Arrived:
        """An empty outcome, at once."""
        return Arrived(OutcomeFrame(), None)

    def close(self) -> None:
        """Drop the connection."""
        self._channel.close()


class StageInbox:
    """Steps of another stage, with tensors, for one thread. Another thread reads ahead: by sockets from the first large
    tensors on, by other transports from the start.

    Tensors that a step announces are received from that moment on if the stage has nothing else to do: on a GPU, a
    receive that waits takes a multiprocessor from the kernels of earlier steps.

    Args:
        transport: from the upstream.
        is_idle: whether the stage's device has finished the steps that were served.
    """

    def __init__(self, transport: Transport, is_idle: Callable[[], bool]) -> None:
        self._transport = transport
        self._is_idle = is_idle
        self._frames: queue.SimpleQueue[StepFrame | Arrived | Exception] = queue.SimpleQueue()
        self._room = threading.Semaphore(READ_AHEAD)
        self._n_served = -1  # steps that the loop has finished; -1 before it takes the first one
        self._n_read = 0  # steps whose frame was read
        self._announced: StepFrame  # the step that was read last
        self._receiving: Callable[[], list[Tensor]] | None = None  # its tensors, if they are received already
        self._closed = False
        self._is_ahead = False
        if transport.kind != SocketTransport.kind:
            self._start_reading_ahead()

    def take_step(self) -> StepFrame:
        """The next step; ``take_outcome`` must follow.

        Raises:
            EOFError, OSError: the upstream is lost, or has announced something impossible.
            msgspec.DecodeError: the upstream sent a malformed frame.
        """
        self._n_served += 1
        if not self._is_ahead:
            return self._read_step()
        frame = self._take()
        assert isinstance(frame, StepFrame), "a step follows an outcome"
        return frame

    def take_outcome(self) -> Arrived:
        """The outcome of earlier stages for the last step, and its activations; raises like ``take_step``."""
        if not self._is_ahead:
            arrived = self._read_outcome()
            if sum(header.n_bytes for header in arrived.outcome.tensors) > AT_ONCE:
                self._start_reading_ahead()
            return arrived
        taken = self._take()
        assert isinstance(taken, Arrived), "an outcome follows a step"
        self._room.release()
        return taken

    def close(self) -> None:
        """Drop the connection; the thread ends by itself."""
        self._closed = True
        self._transport.close()
        self._room.release()

    def _take(self) -> StepFrame | Arrived:
        frame = self._frames.get()
        if isinstance(frame, Exception):
            raise frame
        return frame

    def _start_reading_ahead(self) -> None:
        self._is_ahead = True
        threading.Thread(target=self._read_ahead, name="stage-read", daemon=True).start()

    def _read_ahead(self) -> None:
        try:
            while self._room.acquire() and not self._closed:
                self._frames.put(self._read_step())
                self._frames.put(self._read_outcome())
        except Exception as error:  # of any kind: the loop must raise it
            self._frames.put(error)

    def _read_step(self) -> StepFrame:
        self._announced = decode_step_frame(self._transport.header())
        if self._announced.tensors and self._n_served == self._n_read and self._is_idle():
            self._receiving = self._transport.receive(self._announced.tensors)
        self._n_read += 1
        return self._announced

    def _read_outcome(self) -> Arrived:
        outcome = decode_outcome(self._transport.header())
        if self._announced.tensors not in ((), outcome.tensors):
            raise EOFError("malformed frame: other tensors than its step has announced")
        receiving, self._receiving = self._receiving or self._transport.receive(outcome.tensors), None
        return Arrived(outcome, activations_of(receiving(), outcome.is_fused))
