"""The loop of a stage: receive a step, run the layers, pass it on; the last stage answers the router.

Does not use Ray: an actor (``deployments.stage.actor``) or a test runs it in a thread.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial

import msgspec
import torch
from torch import Tensor

from deployments.pipeline.frames import encode_frame, stamp, tensors_of
from deployments.stage.attention_rows import PeerLostError, RowAsker, RowKeeper
from deployments.stage.inbox import Arrived, Inbox, RouterInbox, StageInbox
from deployments.stage.links.base import Link
from deployments.stage.links.negotiation import NoCommonLinkError, accept_link, offer_link
from deployments.stage.progress import Progress
from deployments.transport.acceptor import Acceptor
from deployments.transport.channel import Channel
from deployments.transport.handshake import UnauthenticatedError
from deployments.transport.roles import RESULTS, ROWS, STAGE, STAGE_ROLES
from engine.stage.base import Computing, StageLike
from engine.step import Step, StepResult, WorkResult, decode_step, encode

logger = logging.getLogger(__name__)


class StageWorker:
    """Serves one stage to peers that know the secret.

    A peer that connects with role ``steps`` (the router) or ``stage`` (the previous stage) becomes the upstream of this
    stage, which connects to the next stage at once. The newest upstream replaces the one before and starts with an
    empty stage, because a router that reconnects has forgotten what was in flight. Results go to the last peer that
    connected with role ``results`` before the upstream did: a router connects in that order. The loss of one neighbour
    drops the other, so that the router hears of the loss of any stage at once.

    Args:
        stage: the layers and their cache.
        device: where activations go.
        address: to listen on.
        secret: of the pipeline.
        transport: which links to neighbours are allowed (``links.negotiation.kinds_of``).
        also: a second address to listen on, for peers that cannot reach the first one; "": none.
    """

    def __init__(
        self,
        stage: StageLike,
        device: torch.device,
        address: str,
        secret: bytes,
        transport: str = "auto",
        also: str = "",
    ) -> None:
        self._stage = stage
        self._device = device
        self._secret = secret
        self._transport = transport
        self._next_address: str | None = None
        self._acceptor = Acceptor([one for one in (address, also) if one], secret, STAGE_ROLES, self._register)
        self.addresses = self._acceptor.addresses
        self._rows_address = self.address
        self._lock = threading.Lock()  # for the three below: every connection is accepted in a thread of its own
        # Upstreams and where their results go; None ends the loop.
        self._upstreams: queue.Queue[tuple[Channel, Channel | None] | None] = queue.Queue()
        self._upstream: Channel | None = None
        self._results: Channel | None = None
        self._next: Link | None = None
        self._closing = False
        self._started = False
        self._is_fed = False  # a router or the stage before this one is connected
        self._progress = Progress()
        self.fault = ""  # why ``transport`` does not allow a link to a neighbour, now and later; "": no such fault
        self._keeper = RowKeeper()
        self._asker = RowAsker(secret)
        self._request_ids: dict[int, str] = {}  # of live sequences, for log lines
        self._askers: set[Channel] = set()  # peers that request attention rows; under the lock

    @property
    def address(self) -> str:
        """The first of the addresses that the stage listens on."""
        return self.addresses[0]

    @property
    def is_alive(self) -> bool:
        """Whether the loop serves steps; a process that answers calls may still have lost its device."""
        return not self._closing

    @property
    def busy_since(self) -> float | None:
        """``time.monotonic`` when the oldest step that is not over yet began; None between steps."""
        return self._progress.busy_since

    @property
    def n_sequences(self) -> int:
        """Sequences that a connected router has on this stage; those of a lost router do not count."""
        return self._stage.n_sequences if self._is_fed else 0

    def start(self, next_address: str | None, rows_address: str = "") -> None:
        """Run acceptor and loop in daemon threads; called again, connect to a replacement of the next stage instead:
        steps in flight are dropped, and the router notices and reconnects.

        Args:
            next_address: of the next stage; None for the last stage.
            rows_address: the one of ``addresses`` by which the last stage reaches this stage; "": the first.
        """
        self._next_address = next_address
        self._rows_address = rows_address or self.address
        if self._started:
            self._drop()
            return
        self._started = True
        self._acceptor.start()
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
        self._acceptor.close()

    def _drop(self) -> None:
        with self._lock:
            for channel in (self._upstream, self._next, self._results):
                if channel is not None:
                    channel.close()

    def _register(self, channel: Channel) -> None:
        previous: Channel | None = channel
        with self._lock:
            if self._closing:
                logger.info("a connection came while the stage was closing")
            elif channel.role == RESULTS:
                previous, self._results = self._results, channel
            elif channel.role == ROWS:
                previous = None
                self._askers.add(channel)
                threading.Thread(target=self._answer, args=(channel,), name="stage-rows", daemon=True).start()
            else:
                previous, self._upstream = self._upstream, channel
                self._upstreams.put((channel, self._results))
        if previous is not None:
            previous.close()

    def _answer(self, channel: Channel) -> None:
        self._keeper.serve(channel)
        with self._lock:
            self._askers.discard(channel)

    def _loop(self) -> None:
        while (connected := self._upstreams.get()) is not None:
            upstream, results = connected
            if upstream is not self._upstream:  # replaced while it waited in the queue, and closed
                continue
            self._stage.reset()
            self._keeper.clear()
            self._request_ids.clear()
            inbox: Inbox = RouterInbox(upstream)
            try:
                if upstream.role == STAGE:
                    inbox = StageInbox(accept_link(upstream, self._transport, self._device))
                self._connect(upstream)
                self._is_fed = True
                while True:
                    arrived = inbox.take()
                    self._progress.begin()
                    self._serve(arrived, results)
            except NoCommonLinkError as error:  # permanent: ``ping`` and ``hold`` raise it from now on
                logger.error("no link to a neighbour: %s", error)
                self.fault = str(error)
            except (EOFError, OSError, UnauthenticatedError) as error:
                logger.info("upstream lost: %s", error)
            except Exception:
                logger.exception("the stage cannot go on")  # ``ping`` fails from now on, and the stage is replaced
                self.close()
            self._is_fed = False
            for connection in (inbox, self._next, results):
                if connection is not None:
                    connection.close()
            self._next = None
            self._asker.close()
            self._settle()

    def _settle(self) -> None:
        """After an upstream is lost. No other is served before the device is done."""
        try:
            if not self._closing:
                self._progress.settle()
        except Exception:
            logger.exception("the stage cannot go on")
            self.close()

    def _connect(self, upstream: Channel) -> None:
        """Build the link to the next stage before its first step; given up when the upstream hangs up meanwhile."""
        if self._next_address is None:
            return
        channel = Channel.connect(self._next_address, self._secret, STAGE)
        try:
            self._next = offer_link(channel, self._transport, self._device, lambda: upstream.is_hung_up)
        except BaseException:
            channel.close()
            raise

    def _serve(self, arrived: Arrived, results: Channel | None) -> None:
        """Serve one frame. A malformed one ends the connection; a step that fails is answered with its error."""
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
        elif results is not None:
            results.send(encode(StepResult(step.step_id, answers, seconds, error, (*frame.seconds, seconds))))
        else:
            raise EOFError("no peer has connected with the role results")

    def _computed(self, wait: Callable[[], float], header: bytearray) -> None:
        """Called by the link: returns when the device is done with a step, whose ``header`` has its time then."""
        try:
            stamp(header, wait())
        except torch.AcceleratorError:
            logger.exception("the stage cannot go on")
            self.close()
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
