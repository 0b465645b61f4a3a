"""A stage's persistent loop: receive a step, run the layers, pass it on; the last stage answers the router.

No Ray here: an actor (``deployments.stage_actor``) or a test runs it in a thread.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time

import msgspec
import torch

from deployments.channel import Channel, UnauthenticatedError, listen
from deployments.frames import decode_frame, encode_frame
from engine.stage import Activations, Stage
from engine.step import Step, StepResult, WorkResult, encode
from engine.target import attach_attention

STEPS, RESULTS = "steps", "results"  # roles of the connections a stage accepts

logger = logging.getLogger(__name__)


class StageWorker:
    """Serves one stage to whoever knows the secret.

    Whoever connects with role ``steps`` becomes the stage's upstream (the router, or the stage before); the newest
    wins and starts with an empty stage, because a router that reconnects has forgotten what was in flight.

    Args:
        stage: the layers and their cache.
        device: where activations go.
        address: to listen on.
        secret: of the pipeline.
    """

    def __init__(
        self,
        stage: Stage,
        device: torch.device,
        address: str,
        secret: bytes,
    ) -> None:
        self._stage = stage
        self._device = device
        self._secret = secret
        self._next_address: str | None = None
        self._server, self.address = listen(address)
        self._upstreams: queue.Queue[Channel] = queue.Queue()
        self._upstream: Channel | None = None
        self._results: Channel | None = None
        self._next: Channel | None = None
        self._closing = False

    @property
    def n_sequences(self) -> int:
        """Sequences the stage holds state of."""
        return self._stage.n_sequences

    def start(self, next_address: str | None) -> None:
        """Run acceptor and loop in daemon threads; ``next_address`` is the stage behind, None for the last one."""
        self._next_address = next_address
        threading.Thread(target=self._accept, name="stage-accept", daemon=True).start()
        threading.Thread(target=self._loop, name="stage-loop", daemon=True).start()

    def close(self) -> None:
        """Stop listening and drop every connection."""
        self._closing = True
        for channel in (self._upstream, self._results, self._next):
            if channel is not None:
                channel.close()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._server.accept()
                channel = Channel.accept(connection, self._secret)
            except (UnauthenticatedError, EOFError) as error:
                logger.warning("connection refused: %s", error)
                continue
            except OSError:
                return  # closed
            if channel.role == RESULTS:
                self._results = channel
            else:
                previous, self._upstream = self._upstream, channel
                self._upstreams.put(channel)
                if previous is not None:
                    previous.close()

    def _loop(self) -> None:
        while not self._closing:
            upstream = self._upstreams.get()
            self._stage.reset()
            if self._next is not None:
                self._next.close()
                self._next = None
            with contextlib.suppress(EOFError, OSError):
                while True:
                    self._serve(upstream.receive())

    def _serve(self, raw: bytes) -> None:
        """One frame. A malformed one ends the connection; a step that fails is answered with its error."""
        began = time.perf_counter()
        try:
            step, incoming, error = decode_frame(raw, self._device)
        except msgspec.ValidationError as wrong:
            raise EOFError(f"malformed frame: {wrong}") from wrong
        activations: Activations | None = None
        results: list[WorkResult] = []
        if not error:
            try:
                activations, results = self._run(step, incoming)
            except Exception as failure:  # whatever it is, only this step's sequences may suffer
                logger.exception("step %d failed", step.step_id)
                error = f"{type(failure).__name__}: {failure}"
        if self._next_address is not None:
            self._pass_on(encode_frame(step, activations, error))
        elif self._results is not None:
            seconds = time.perf_counter() - began
            self._results.send(encode(StepResult(step.step_id, results, seconds, error)))

    def _run(self, step: Step, incoming: Activations | None) -> tuple[Activations | None, list[WorkResult]]:
        """This stage's part of a step; results only on the last stage."""
        if not step.work:
            self._stage.admit(step)
            return None, []
        activations = self._stage.forward(step, incoming)
        if self._next_address is not None:
            return activations, []
        results = self._stage.verify(activations)
        rows = self._stage.attention(results)
        return activations, [attach_attention(result, rows) for result in results] if rows else results

    def _pass_on(self, frame: bytes) -> None:
        assert self._next_address is not None
        if self._next is None:
            self._next = Channel.connect(self._next_address, self._secret, STEPS)
        self._next.send(frame)
