"""The loop of a stage and its connections; ``deployments.stage.step_server`` serves its steps.

Does not use Ray: an actor (``deployments.stage.actor``) or a test runs it in a thread.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import NoReturn

import msgspec
import torch

from deployments.channels.acceptor import Acceptor
from deployments.channels.channel import Channel
from deployments.channels.handshake import RANK, RESULTS, ROWS, STAGE, STAGE_ROLES, UnauthenticatedError
from deployments.stage.attention_rows import RowKeeper, RowRequester
from deployments.stage.inbox import RouterInbox, StageInbox
from deployments.stage.progress import StepProgress
from deployments.stage.step_server import StepServer
from deployments.stage.transports.base import Transport
from deployments.stage.transports.negotiation import NoCommonTransportError, accept_transport, offer_transport
from engine.errors import RankLostError
from engine.parallel.follower import follow
from engine.parallel.leader import ParallelStage
from engine.stage.base import StageLike
from engine.stage.stage import Stage

logger = logging.getLogger(__name__)


class StageWorker:
    """Serves one stage to peers that know the secret.

    A peer that connects with role ``steps`` (the router) or ``stage`` (the previous stage) becomes the upstream of this
    stage, which then connects to the next stage. A new upstream replaces the previous one and starts with an empty
    stage, because a router that reconnects has dropped its steps in flight. Results go to the last peer that connected
    with role ``results`` before the upstream did: a router connects in that order. The loss of one neighbour drops the
    other, so that the router notices the loss of any stage at once.

    Args:
        stage: the layers and their cache.
        device: where activations go.
        address: to listen on.
        secret: of the pipeline.
        transport: the option of that name (``transports.negotiation.allowed_kinds``).
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
        self._rank_addresses: tuple[str, ...] = ()
        self._acceptor = Acceptor([one for one in (address, also) if one], secret, STAGE_ROLES, self._register)
        self.addresses = self._acceptor.addresses
        self._rows_address = self.address
        self._lock = threading.Lock()  # for the three below: each connection is accepted in its own thread
        # Upstreams and where their results go; None ends the loop.
        self._upstreams: queue.Queue[tuple[Channel, Channel | None] | None] = queue.Queue()
        self._upstream: Channel | None = None
        self._results: Channel | None = None
        self._next: Transport | None = None
        self._closing = False
        self._started = False
        self._is_fed = False  # a router or the stage before this one is connected
        self._progress = StepProgress()
        self.fault = ""  # why the option ``transport`` connects no neighbour, now and later; "": no such fault
        self._keeper = RowKeeper()
        self._requester = RowRequester(secret)
        self._steps = StepServer(stage, device, self._keeper, self._requester, self._progress, self.close)
        self._row_peers: set[Channel] = set()  # peers that request attention rows; under the lock

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
        """Number of sequences of a connected router on this stage; those of a lost router do not count."""
        return self._stage.n_sequences if self._is_fed else 0

    def start(self, next_address: str | None, rows_address: str = "", ranks: Sequence[str] = ()) -> None:
        """Run acceptor and loop in daemon threads.

        A later call connects to replacements of the next stage and of ranks: it drops the steps in flight, and the
        router reconnects.

        Args:
            next_address: of the next stage; None for the last stage.
            rows_address: the one of ``addresses`` by which the last stage reaches this stage; "": the first.
            ranks: addresses of the other tensor-parallel ranks, for the leader.
        """
        self._next_address = next_address
        self._rows_address = rows_address or self.address
        if isinstance(self._stage, ParallelStage) and self._rank_addresses != (*ranks,):
            self._rank_addresses = (*ranks,)
            self._stage.disconnect()
        if self._started:
            if self._upstream is None or self._upstream.role != RANK:  # a follower's leader knows whom it needs
                self._drop()
            return
        self._started = True
        self._acceptor.start()
        threading.Thread(target=self._run, name="stage-loop", daemon=True).start()

    def close(self) -> None:
        """Stop listening and drop every connection."""
        with self._lock:
            self._closing = True
            self._upstreams.put(None)
            row_peers = [*self._row_peers]
        for channel in (self._upstream, self._results, self._next, *row_peers):
            if channel is not None:
                channel.close()
        if isinstance(self._stage, ParallelStage):
            self._stage.disconnect()
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
                self._row_peers.add(channel)
                threading.Thread(target=self._answer, args=(channel,), name="stage-rows", daemon=True).start()
            else:
                previous, self._upstream = self._upstream, channel
                self._upstreams.put((channel, self._results))
        if previous is not None:
            previous.close()

    def _answer(self, channel: Channel) -> None:
        self._keeper.serve(channel)
        with self._lock:
            self._row_peers.discard(channel)

    def _run(self) -> None:
        try:
            self._loop()
        except Exception:
            logger.exception("the stage cannot go on")
        finally:
            self.close()  # else the stage would count as alive

    def _loop(self) -> None:
        while (connected := self._upstreams.get()) is not None:
            upstream, results = connected
            if upstream is not self._upstream:  # replaced while it waited in the queue, and closed
                continue
            inbox: RouterInbox | StageInbox = RouterInbox(upstream)
            try:
                if upstream.role == RANK:
                    self._follow(upstream)
                if upstream.role == STAGE:
                    incoming = accept_transport(upstream, self._transport, self._device)
                    inbox = StageInbox(incoming, lambda: self._progress.busy_since is None)
                self._connect(upstream)
                self._connect_ranks()  # takes long on GPUs, so the neighbours' negotiations come before
                self._steps.reset()
                self._steps.attach(self._next, results, self._rows_address)
                self._is_fed = True
                while True:
                    self._steps.serve(inbox)
            except NoCommonTransportError as error:  # permanent: ``ping`` and ``hold`` raise it from now on
                logger.error("no transport to a neighbour: %s", error)
                self.fault = str(error)
            except (EOFError, OSError, UnauthenticatedError, msgspec.DecodeError) as error:
                logger.info("upstream lost: %s", error)
            except Exception:
                logger.exception("the stage cannot go on")  # ``ping`` fails from now on, and the stage is replaced
                self.close()
            self._is_fed = False
            for connection in (inbox, self._next, results):
                if connection is not None:
                    connection.close()
            self._next = None
            self._requester.close()
            self._settle()

    def _settle(self) -> None:
        """Wait for the device after an upstream is lost, before another one is served."""
        try:
            if not self._closing:
                self._progress.settle()
        except RankLostError:
            pass  # the device is done; the ranks will be connected again
        except Exception:
            logger.exception("the stage cannot go on")
            self.close()

    def _follow(self, leader: Channel) -> NoReturn:
        """Serve the leader of this stage's ranks; raises when it is lost."""
        assert isinstance(self._stage, Stage), "a follower runs layers"
        follow(self._stage, leader)

    def _connect_ranks(self) -> None:
        """Connect a leader to its other ranks, unless it still is."""
        if isinstance(self._stage, ParallelStage) and not self._stage.is_connected:
            with ExitStack() as opened:  # closes what was opened if a rank is lost
                connected = (Channel.connect(address, self._secret, RANK) for address in self._rank_addresses)
                self._stage.connect([opened.enter_context(closing(channel)) for channel in connected])
                opened.pop_all()

    def _connect(self, upstream: Channel) -> None:
        """Build the transport to the next stage before its first step, unless the upstream hangs up meanwhile."""
        if self._next_address is None:
            return
        channel = Channel.connect(self._next_address, self._secret, STAGE)
        try:
            self._next = offer_transport(channel, self._transport, self._device, lambda: upstream.is_hung_up)
        except BaseException:
            channel.close()
            raise
