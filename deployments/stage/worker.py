"""A stage's persistent loop: receive a step, run the layers, pass it on; the last stage answers the router.

No Ray here: an actor (``deployments.stage.actor``) or a test runs it in a thread.
"""

from __future__ import annotations

import logging
import queue
import threading
import time

import msgspec
import torch
from torch import Tensor

from deployments.pipeline.frames import encode_frame, stamp, tensors_of
from deployments.stage.attention_rows import PeerLostError, RowAsker, RowKeeper
from deployments.stage.inbox import Arrived, Inbox, RouterInbox, StageInbox
from deployments.stage.links.base import Link
from deployments.stage.links.negotiation import NoCommonLinkError, accept_link, offer_link
from deployments.transport.acceptor import Acceptor
from deployments.transport.channel import Channel
from deployments.transport.handshake import UnauthenticatedError
from deployments.transport.roles import RESULTS, ROWS, STAGE, STAGE_ROLES
from engine.stage.base import StageLike
from engine.step import Step, StepResult, WorkResult, decode_step, encode

logger = logging.getLogger(__name__)


class StageWorker:
    """Serves one stage to whoever knows the secret.

    Whoever connects with role ``steps`` (the router) or ``stage`` (the stage before) becomes the stage's upstream, and
    the stage connects to the one behind it at once. The newest wins and starts with an empty stage, because a router
    that reconnects has forgotten what was in flight. Its results go to whoever connected with role ``results`` last
    before it: a router connects there first. Losing one neighbour drops the other, so that the loss of any stage
    reaches the router at once.

    Args:
        stage: the layers and their cache.
        device: where activations go.
        address: to listen on.
        secret: of the pipeline.
        transport: which links to neighbours are allowed (``links.negotiation.kinds_of``).
        also: a second address to listen on, for peers that the first one is out of reach of; "": none.
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
        self._lock = threading.Lock()  # the three below: connections are taken in by threads of their own
        self._upstreams: queue.Queue[tuple[Channel, Channel | None] | None] = queue.Queue()  # and where results go
        self._upstream: Channel | None = None
        self._results: Channel | None = None
        self._next: Link | None = None
        self._closing = False
        self._started = False
        self._busy_since: float | None = None
        self._fault = ""
        self._keeper = RowKeeper()
        self._asker = RowAsker(secret)
        self._askers: set[Channel] = set()  # peers that ask for rows; under the lock

    @property
    def address(self) -> str:
        """The first of the addresses that it listens on."""
        return self.addresses[0]

    @property
    def n_sequences(self) -> int:
        """Sequences the stage holds state of."""
        return self._stage.n_sequences

    @property
    def is_alive(self) -> bool:
        """Whether steps would be served; a process that answers may still have lost its device."""
        return not self._closing

    @property
    def fault(self) -> str:
        """Why this stage and a neighbour can never be linked as they were told to be; "" if they can, or may."""
        return self._fault

    @property
    def busy_since(self) -> float | None:
        """``time.monotonic`` since when the loop has been inside one step; None while it waits for one."""
        return self._busy_since

    def start(self, next_address: str | None, rows_address: str = "") -> None:
        """Run acceptors and loop in daemon threads; ``next_address`` is the stage behind, None for the last one.

        ``rows_address`` is by which of its addresses the last stage reaches this one; "": by the first.

        Called again, it names the stage that has taken the place of the one behind: what was in flight is dropped
        (the router notices and connects anew), and the next step goes to the new one.
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
            if upstream is not self._upstream:  # superseded while it waited here, and closed
                continue
            self._stage.reset()
            self._keeper.clear()
            inbox: Inbox = RouterInbox(upstream)
            try:
                if upstream.role == STAGE:
                    inbox = StageInbox(accept_link(upstream, self._transport, self._device))
                self._connect(upstream)
                while True:
                    arrived = inbox.take()
                    self._busy_since = time.monotonic()
                    self._serve(arrived, results)
                    self._busy_since = None
            except NoCommonLinkError as error:  # no second try ends better: ``ping`` and ``hold`` say so from now on
                logger.error("no link to a neighbour: %s", error)
                self._fault = str(error)
            except (EOFError, OSError, UnauthenticatedError) as error:
                logger.info("upstream lost: %s", error)
            except Exception:
                logger.exception("the stage cannot go on")  # ``ping`` fails from now on, and the pipeline is replaced
                self.close()
            self._busy_since = None
            for connection in (inbox, self._next, results):
                if connection is not None:
                    connection.close()
            self._next = None
            self._asker.close()

    def _connect(self, upstream: Channel) -> None:
        """The link to the stage behind, before there is a step for it; given up when nobody waits for it any more."""
        if self._next_address is None:
            return
        channel = Channel.connect(self._next_address, self._secret, STAGE)
        try:
            self._next = offer_link(channel, self._transport, self._device, lambda: upstream.is_hung_up)
        except BaseException:
            channel.close()
            raise

    def _serve(self, arrived: Arrived, results: Channel | None) -> None:
        """One frame. A malformed one ends the connection; a step that fails is answered with its error."""
        began = time.perf_counter()
        frame = arrived.frame
        try:
            step = decode_step(frame.step)
        except (msgspec.DecodeError, ValueError) as wrong:  # the latter from an array's bytes
            raise EOFError(f"malformed step: {wrong}") from wrong
        error, header, tensors = frame.error, bytearray(), list[Tensor]()
        answers: list[WorkResult] = []
        if not error:
            try:
                if self._next is None:
                    answers = self._answers(step, arrived)
                else:
                    header, tensors = self._pass_on(step, arrived, self._next)
            except (torch.AcceleratorError, PeerLostError):
                raise  # a device that failed stays failed, a pipeline without one of its stages is none
            except Exception as failure:  # whatever it is, only this step's sequences may suffer
                logger.exception("step %d failed", step.step_id)
                error = f"{type(failure).__name__}: {failure}"
        if error:
            self._stage.admit(step)  # what ended has ended, on the stages behind a failed one too
            header, tensors, answers = encode_frame(frame.step, None, error, (), (*frame.seconds, 0.0)), [], []
        seconds = time.perf_counter() - began
        if self._next is not None:
            stamp(header, seconds)
            self._next.send(header, tensors)
        elif results is not None:
            results.send(encode(StepResult(step.step_id, answers, seconds, error, (*frame.seconds, seconds))))
        else:
            raise EOFError("nobody has connected for the results")

    def _pass_on(self, step: Step, arrived: Arrived, link: Link) -> tuple[bytearray, list[Tensor]]:
        """This stage's part of a step: what goes to the next one, made ready while a device is still at it."""
        activations, rows_at = None, arrived.frame.rows_at
        if not step.work:
            self._stage.admit(step)
        else:
            activations = self._stage.forward(step, arrived.activations)
            captured = self._stage.captured() if any(work.draw for work in step.work) else None
            if captured is not None:
                self._keeper.keep(step.step_id, captured)
                rows_at = (*rows_at, self._rows_address)
        seconds = (*arrived.frame.seconds, 0.0)  # this stage's own is stamped on it
        header, tensors = encode_frame(arrived.frame.step, activations, "", rows_at, seconds), tensors_of(activations)
        link.prepare(header, tensors)
        if step.work:
            self._stage.wait()
        return header, tensors

    def _answers(self, step: Step, arrived: Arrived) -> list[WorkResult]:
        """The last stage's part of a step."""
        if not step.work:
            self._stage.admit(step)
            return []
        answers = self._stage.verify(self._stage.forward(step, arrived.activations))
        return self._asker.attach(step.step_id, answers, self._stage.attention(answers), arrived.frame.rows_at)
