"""The router: decode sessions, admission, the choice of a lane, drafting. Plain asyncio, no Ray (``builder`` wraps it).

Every pipeline has a lane (``deployments.router.lane``) with a scheduler and a step loop of its own. A sequence stays
with its lane, unless that one is without a pipeline for long while another has one.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace

from deployments.options import RouterOptions
from deployments.pipeline.connection import Pipeline
from deployments.router.admission import Gate
from deployments.router.draft_client import Drafter, Drafts
from deployments.router.lane import Lane
from deployments.router.lane_observer import Home
from deployments.router.metrics import RouterMetrics
from deployments.router.placement import Placement
from deployments.router.rebalance import Moves
from deployments.router.resume import finish_of, sequence_of
from deployments.router.sessions import Session, Sessions
from deployments.submission.messages import SubmitRequest
from engine.errors import OverloadedError, SpectraError, StepFailedError, TargetLostError
from engine.events import LENGTH, STOP, StepEvent
from engine.protocol import Needs
from engine.scheduling.commit import Progress
from engine.scheduling.drafting import AUTOREGRESSIVE, Turn, apply_drafts, take_turn
from engine.scheduling.sequence import Sequence as Request
from engine.step import StepResult
from engine.step_cost import StepCosts
from engine.target.info import TargetInfo

logger = logging.getLogger(__name__)

Connect = Callable[[], Awaitable[Pipeline]]


class Router:
    """Serves one lane per home.

    Args:
        options: see there.
        info: of the target; all pipelines and their replacements must be of the same kind.
        drafter: where speculators run; all lanes share it.
        homes: where pipelines come from; a lone function that connects one is the home ``Target``.
        learn: takes the namespace and the output of every request that ended well; must return at once.
        costs: step times of a pipeline; None: not measured.
    """

    def __init__(
        self,
        options: RouterOptions,
        info: TargetInfo,
        drafter: Drafter,
        homes: Sequence[Home] | Connect,
        learn: Callable[[str, list[int]], None] | None = None,
        costs: StepCosts | None = None,
    ) -> None:
        self.options = options
        self.info = info
        self._drafter = drafter
        self._learn = learn
        self._metrics = RouterMetrics(options.model)
        self._sessions = Sessions(self._metrics)
        homes = [Home("Target", homes)] if callable(homes) else homes
        # The gate below counts over all lanes; a queue of one lane refuses nobody that it has let in.
        mine = replace(options, scheduler=replace(options.scheduler, max_waiting=sys.maxsize))
        self.lanes = [Lane(home, info, mine, costs, self) for home in homes]
        self._gate = Gate(self.lanes, options)
        self._placement = Placement(self.lanes, options)
        self._moves = Moves(self.lanes, self._sessions, self._metrics, options.failover)
        self._drafting: set[asyncio.Task[None]] = set()
        self._next_seq = 0
        self._closed = False

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve; needs a running event loop."""
        for lane in self.lanes:
            lane.start()
        self._moves.begin()

    async def close(self) -> None:
        """Stop serving: live streams get an error."""
        self._closed = True
        self._moves.close()
        for lane in self.lanes:
            await lane.close()
        for task in self._drafting:
            task.cancel()
        await asyncio.gather(*self._drafting, return_exceptions=True)
        self._sessions.fail_all(TargetLostError("the router is shutting down"))

    @property
    def is_ready(self) -> bool:
        """Whether a pipeline is up."""
        return any(lane.is_up for lane in self.lanes)

    async def state(self) -> dict[str, int | bool]:
        """Figures for health checks and leak tests: sums over lanes, then every lane's own if there are several."""
        schedulers = [lane.scheduler for lane in self.lanes]
        figures: dict[str, int | bool] = {
            "ready": self.is_ready,
            "running": sum(scheduler.n_running for scheduler in schedulers),
            "waiting": sum(lane.n_waiting for lane in self.lanes),
            "free_blocks": sum(scheduler.blocks.n_free for scheduler in schedulers),
            "blocks": sum(scheduler.blocks.n_blocks for scheduler in schedulers),
            "sessions": len(self._sessions),
            "speculator_states": await self._drafter.n_live(),
            "pipelines_lost": sum(lane.n_lost for lane in self.lanes),
            "lanes": len(self.lanes),
            "lanes_up": sum(lane.is_up for lane in self.lanes),
        }
        for lane in self.lanes if len(self.lanes) > 1 else ():
            figures |= {f"{lane.home.name}.{name}": value for name, value in lane.figures().items()}
        return figures

    def metrics_text(self) -> str:
        """Prometheus exposition text."""
        return self._metrics.render(self.lanes)

    # -- requests ------------------------------------------------------------------------------------------------

    async def stream(self, request: SubmitRequest) -> AsyncGenerator[StepEvent, None]:
        """Events of one request, as they happen; closing the iterator cancels it.

        Raises:
            RequestError: it can never be served.
            OverloadedError: too much is to be done before it.
            StepFailedError: the target failed on it.
            TargetLostError: the router is shutting down.
        """
        if self._closed:
            raise TargetLostError("the router is shutting down")
        over = finish_of(request)
        if over is not None:  # a lost router had emitted all of it but the end
            self._teach(request, request.emitted)
            yield over
            return
        session = self._open(request)
        try:
            shared = self.options.shared_namespace
            self._begin(session, "" if request.namespace == shared else request.namespace)
            while True:
                event = await session.mailbox.get()
                if isinstance(event, SpectraError):
                    raise event
                if event.finish_reason in (STOP, LENGTH):
                    self._teach(request, session.sequence.tokens[session.sequence.n_prompt :])
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            self._close_session(session)

    def _teach(self, request: SubmitRequest, output: list[int]) -> None:
        if self._learn is not None:
            self._learn(request.namespace or self.options.shared_namespace, output)

    def _open(self, request: SubmitRequest) -> Session:
        method = request.method or self.options.method
        max_nodes = self.options.max_nodes if request.max_nodes is None else request.max_nodes
        needs = Needs() if method == AUTOREGRESSIVE else self._drafter.needs(method)
        sequence = sequence_of(request, self._next_seq, method, min(max_nodes, self.options.limit_nodes), needs)
        lane = self._placement.choose(request)
        if not request.resumed:  # it was let in before
            try:
                self._gate.check(sequence, lane)
            except OverloadedError:
                self._metrics.count_refusal()
                raise
        lane.scheduler.submit(sequence)
        self._next_seq += 1
        return self._sessions.open(sequence, lane)

    def _begin(self, session: Session, namespace: str) -> None:
        if session.sequence.method != AUTOREGRESSIVE:
            self._drafter.begin(session.sequence, namespace)
        session.lane.dispatch()

    def _close_session(self, session: Session) -> None:
        self._sessions.close(session)
        session.lane.cancel(session.sequence)
        if session.sequence.method != AUTOREGRESSIVE:
            self._drafter.end(session.sequence)
        session.lane.dispatch()

    # -- what lanes tell -----------------------------------------------------------------------------------------

    def draft(self, lane: Lane, progress: list[Progress]) -> None:
        """Let the speculators of sequences that got on learn and draft; at once, or when they are done."""
        turn = take_turn(progress, lane.scheduler)
        if turn.is_empty:
            return
        drafts = self._drafter.draft(turn)
        if not inspect.isawaitable(drafts):
            self._apply(lane, turn, drafts)
            return
        task = asyncio.get_running_loop().create_task(self._finish_draft(lane, turn, drafts))
        self._drafting.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._drafting.discard)

    def tell(self, lane: Lane, result: StepResult, progress: list[Progress]) -> None:
        """Hand events to their streams."""
        self._metrics.count_step(lane.home.name, result)
        self._sessions.deliver(progress)

    def fail(self, sequence: Request, error: str) -> None:
        """Let a stream raise."""
        self._sessions.fail(sequence, StepFailedError(error))

    def came_up(self, lane: Lane) -> None:
        """A lane has a pipeline: it may help others."""
        self._moves.came_up(lane)

    def went_down(self, lane: Lane, n_running: int) -> None:
        """A lane has none: others may have to help it."""
        self._metrics.count_loss(n_running)
        self._moves.went_down(lane)

    def recovered(self, lane: Lane, seconds: float) -> None:
        """A lane serves again."""
        logger.info("%s answers again, %.2f s after it was lost", lane.home.name, seconds)
        self._metrics.count_recovery(seconds)

    # -- drafting ------------------------------------------------------------------------------------------------

    async def _finish_draft(self, lane: Lane, turn: Turn, drafts: Awaitable[Drafts]) -> None:
        """Drafts that come later; without them if that fails, for nobody else would ever wake these sequences."""
        try:
            arrived = await drafts
        except Exception:
            logger.exception("drafting failed; %d sequences go on without", len(turn.drafting))
            arrived = {}
        self._apply(lane, turn, arrived)
        lane.dispatch()

    def _apply(self, lane: Lane, turn: Turn, drafts: Drafts) -> None:
        here = [sequence for sequence in turn.drafting if self._is_in(sequence, lane)]
        turn = replace(turn, drafting=here)  # what has moved meanwhile has another scheduler, and is to be drafted anew
        try:
            apply_drafts(turn, drafts, lane.scheduler)
        except Exception:
            logger.exception("a draft is no tree; %d sequences go on without", len(turn.drafting))
            apply_drafts(turn, {}, lane.scheduler)

    def _is_in(self, sequence: Request, lane: Lane) -> bool:
        session = self._sessions.find(sequence.seq)
        return session is not None and session.lane is lane
