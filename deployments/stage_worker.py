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
from deployments.head_rows import ROWS, PeerLostError, RowAsker, RowKeeper
from engine.stage import Activations
from engine.stage_like import StageLike
from engine.step import Step, StepResult, WorkResult, encode

STEPS, RESULTS = "steps", "results"  # roles of the connections a stage accepts
ACCEPT_AGAIN_S = 0.05  # pause after a connection that could not be taken

logger = logging.getLogger(__name__)


class StageWorker:
    """Serves one stage to whoever knows the secret.

    Whoever connects with role ``steps`` becomes the stage's upstream (the router, or the stage before); the newest
    wins and starts with an empty stage, because a router that reconnects has forgotten what was in flight. Its results
    go to whoever connected with role ``results`` last before it: a router connects there first. Losing one neighbour
    drops the other, so that the loss of any stage reaches the router at once.

    Args:
        stage: the layers and their cache.
        device: where activations go.
        address: to listen on.
        secret: of the pipeline.
    """

    def __init__(
        self,
        stage: StageLike,
        device: torch.device,
        address: str,
        secret: bytes,
    ) -> None:
        self._stage = stage
        self._device = device
        self._secret = secret
        self._next_address: str | None = None
        self._server, self.address = listen(address)
        self._lock = threading.Lock()  # the three below: connections are taken in by threads of their own
        self._upstreams: queue.Queue[tuple[Channel, Channel | None] | None] = queue.Queue()  # and where results go
        self._upstream: Channel | None = None
        self._results: Channel | None = None
        self._next: Channel | None = None
        self._closing = False
        self._keeper = RowKeeper()
        self._asker = RowAsker(secret)
        self._askers: set[Channel] = set()  # peers that ask for rows; under the lock

    @property
    def n_sequences(self) -> int:
        """Sequences the stage holds state of."""
        return self._stage.n_sequences

    @property
    def is_alive(self) -> bool:
        """Whether steps would be served; a process that answers may still have lost its device."""
        return not self._closing

    def start(self, next_address: str | None) -> None:
        """Run acceptor and loop in daemon threads; ``next_address`` is the stage behind, None for the last one."""
        self._next_address = next_address
        threading.Thread(target=self._accept, name="stage-accept", daemon=True).start()
        threading.Thread(target=self._loop, name="stage-loop", daemon=True).start()

    def close(self) -> None:
        """Stop listening and drop every connection."""
        with self._lock:
            self._closing = True
            self._upstreams.put(None)
            askers = [*self._askers]
        for channel in (self._upstream, self._results, self._next, *askers):
            if channel is not None:
                channel.close()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._server.accept()
            except OSError:  # closed, or a peer that went at once, or no file descriptor left
                time.sleep(ACCEPT_AGAIN_S)
                continue
            # A thread each: a stranger who connects and says nothing must not keep the router waiting.
            threading.Thread(target=self._welcome, args=(connection,), name="stage-welcome", daemon=True).start()

    def _welcome(self, connection: socket.socket) -> None:
        try:
            Channel.accept(connection, self._secret, self._register)
        except UnauthenticatedError as error:
            logger.warning("connection refused: %s", error)

    def _register(self, channel: Channel) -> None:
        previous: Channel | None = channel
        with self._lock:
            if self._closing:
                logger.info("a connection came while the stage was closing")
            elif channel.role == RESULTS:
                previous, self._results = self._results, channel
            elif channel.role == STEPS:
                previous, self._upstream = self._upstream, channel
                self._upstreams.put((channel, self._results))
            elif channel.role == ROWS:
                previous = None
                self._askers.add(channel)
                threading.Thread(target=self._answer, args=(channel,), name="stage-rows", daemon=True).start()
            else:
                logger.warning("connection refused: no stage has a role %r for it", channel.role)
        if previous is not None:
            previous.close()

    def _answer(self, channel: Channel) -> None:
        self._keeper.serve(channel)
        with self._lock:
            self._askers.discard(channel)

    def _loop(self) -> None:
        while (connected := self._upstreams.get()) is not None:
            upstream, results = connected
            self._stage.reset()
            self._keeper.clear()
            try:
                while True:
                    self._serve(upstream.receive(), results)
            except (EOFError, OSError, UnauthenticatedError) as error:
                logger.info("upstream lost: %s", error)
            except Exception:
                logger.exception("the stage cannot go on")  # ``ping`` fails from now on, and the pipeline is replaced
                self.close()
            for channel in (upstream, self._next, results):
                if channel is not None:
                    channel.close()
            self._next = None
            self._asker.close()

    def _serve(self, raw: bytes, results: Channel | None) -> None:
        """One frame. A malformed one ends the connection; a step that fails is answered with its error."""
        began = time.perf_counter()
        try:
            step, incoming, error, rows_at = decode_frame(raw, self._device)
        except (msgspec.DecodeError, ValueError, RuntimeError) as wrong:  # the latter two from a tensor's bytes
            raise EOFError(f"malformed frame: {wrong}") from wrong
        activations: Activations | None = None
        answers: list[WorkResult] = []
        if not error:
            try:
                activations, answers, rows_at = self._run(step, incoming, rows_at)
            except (torch.AcceleratorError, PeerLostError):
                raise  # a device that failed stays failed, a pipeline without one of its stages is none
            except Exception as failure:  # whatever it is, only this step's sequences may suffer
                logger.exception("step %d failed", step.step_id)
                error = f"{type(failure).__name__}: {failure}"
        if error:
            self._stage.admit(step)  # what ended has ended, on the stages behind a failed one too
        if self._next_address is not None:
            self._pass_on(self._next_address, encode_frame(step, activations, error, rows_at))
        elif results is not None:
            seconds = time.perf_counter() - began
            results.send(encode(StepResult(step.step_id, answers, seconds, error)))
        else:
            raise EOFError("nobody has connected for the results")

    def _run(
        self, step: Step, incoming: Activations | None, rows_at: tuple[str, ...]
    ) -> tuple[Activations | None, list[WorkResult], tuple[str, ...]]:
        """This stage's part of a step: activations, results (only on the last stage), who is to be asked for rows."""
        if not step.work:
            self._stage.admit(step)
            return None, [], ()
        activations = self._stage.forward(step, incoming)
        if self._next_address is not None:
            captured = self._stage.captured() if any(work.draw for work in step.work) else None
            if captured is not None:
                self._keeper.keep(step.step_id, captured)
                rows_at = (*rows_at, self.address)
            return activations, [], rows_at
        answers = self._stage.verify(activations)
        answers = self._asker.attach(step.step_id, answers, self._stage.attention(answers), rows_at)
        return activations, answers, rows_at

    def _pass_on(self, address: str, frame: bytes) -> None:
        if self._next is None:
            self._next = Channel.connect(address, self._secret, STEPS)
        self._next.send(frame)
