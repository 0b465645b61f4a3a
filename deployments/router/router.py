"""The router: opens sessions for requests, and connects admission, lanes, drafting, failover and scaling.

Every pipeline has a lane (``deployments.router.lane``) with its own scheduler and step loop. A sequence stays in its
lane until the lane has been without a pipeline for longer than ``failover`` while another lane has one. Plain asyncio;
``deployment`` wraps it for Ray.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from dataclasses import replace

from prometheus_client.registry import Collector

from deployments.observability.traces import RequestSpans
from deployments.options import RouterOptions, ScalingOptions
from deployments.router.admission import Admission, fill_defaults, finish_event
from deployments.router.drafting import DraftClient, DraftRounds
from deployments.router.failover import Rebalancer
from deployments.router.lane import Lane
from deployments.router.lane_connection import TargetClient
from deployments.router.metrics import RouterMetrics
from deployments.router.placement import Placement
from deployments.router.scaling.scaler import PipelineScaler
from deployments.router.sessions import Session, Sessions
from engine.errors import ModelChangedError, OverloadedError, SpectraError, StepFailedError, TargetLostError
from engine.events import LENGTH, STOP, StepEvent
from engine.protocol import Needs
from engine.request import Request
from engine.scheduling.commit import Commit
from engine.scheduling.drafting import AUTOREGRESSIVE
from engine.scheduling.sequence import Sequence
from engine.step import Step, StepResult
from engine.step_cost import StepCosts
from engine.target_model.info import TargetInfo

logger = logging.getLogger(__name__)


class Router:
    """Serves requests on one lane per target; implements ``LaneObserver``.

    Args:
        options: defaults and limits.
        info: of the target; all pipelines and their replacements must have the same.
        draft_client: drafts for all lanes.
        targets: connect to pipelines.
        learn: receives the namespace and the output of every request that ended well; must not block.
        costs: step times of a pipeline; None: not measured.
        metrics: further collectors to expose.
        spans: of traced requests; None: no request is traced.
    """

    def __init__(
        self,
        options: RouterOptions,
        info: TargetInfo,
        draft_client: DraftClient,
        targets: Iterable[TargetClient],
        learn: Callable[[str, list[int]], None] | None = None,
        costs: StepCosts | None = None,
        metrics: Iterable[Collector] = (),
        spans: RequestSpans | None = None,
    ) -> None:
        self.options = options
        self.info = info
        self._model = info.identity.digest
        self._draft_client = draft_client
        self._learn = learn
        # ``max_waiting`` is a limit over all lanes, so ``Admission`` enforces it, and no scheduler does.
        unlimited = replace(options, scheduler=replace(options.scheduler, max_waiting=sys.maxsize))
        self.lanes = [Lane(target, info, unlimited, costs, self) for target in targets]
        self._metrics = RouterMetrics(options.model, info, self.lanes, options.scheduler.prefix_cache, metrics)
        self._sessions = Sessions(self._metrics)
        self._admission = Admission(self.lanes, options)
        self._placement = Placement(self.lanes, options)
        self._rebalancer = Rebalancer(self.lanes, self._sessions, self._metrics, options.failover)
        scaling = options.scaling or ScalingOptions(len(self.lanes), len(self.lanes))
        self.scaler = PipelineScaler(self.lanes, self._rebalancer, scaling, options.grace)
        self._draft_rounds = DraftRounds(draft_client, self._sessions, spans)
        self._spans = spans
        self._next_seq = 0
        self._is_closed = False

    def start(self, running: Collection[str] = ()) -> None:
        """Start serving; needs a running event loop. ``running`` is as in ``PipelineScaler.start``."""
        self.scaler.start(running)
        self._rebalancer.start()

    def hand_over(self) -> None:
        """Serve running requests while there is a pipeline, and leave lost pipelines to the next router."""
        self.scaler.hand_over()
        for lane in self.lanes:
            lane.connection.hand_over()

    async def close(self) -> None:
        """Stop serving; live streams raise TargetLostError."""
        self._is_closed = True
        self._rebalancer.close()
        await self.scaler.close()
        for lane in self.lanes:
            await lane.close()
        await self._draft_rounds.close()
        self._sessions.fail_all(TargetLostError("the router is shutting down"))

    @property
    def is_ready(self) -> bool:
        """Whether a pipeline is up."""
        return any(lane.is_up for lane in self.lanes)

    async def state(self) -> dict[str, int | float | bool]:
        """Figures for health checks: sums over the lanes in use, then those of each lane if there are several."""
        lanes = [lane for lane in self.lanes if lane.is_enabled or lane.is_up or lane.sequences]
        schedulers = [lane.scheduler for lane in lanes]
        figures: dict[str, int | float | bool] = {
            "ready": self.is_ready,
            "running": sum(scheduler.n_running for scheduler in schedulers),
            "waiting": sum(lane.n_waiting for lane in self.lanes),
            "free_blocks": sum(scheduler.blocks.n_free for scheduler in schedulers),
            "blocks": sum(scheduler.blocks.n_blocks for scheduler in schedulers),
            "sessions": len(self._sessions),
            "speculator_states": await self._draft_client.n_live(),
            "pipelines_lost": sum(lane.n_lost for lane in self.lanes),
            "lanes": sum(lane.is_enabled for lane in lanes),
            "lanes_up": sum(lane.is_up for lane in self.lanes),
            "load_seconds": max(round(lane.load_report.seconds.get("ready", 0.0), 2) for lane in self.lanes),
            "load_bytes": sum(lane.load_report.n_read for lane in self.lanes),
        }
        for lane in lanes if len(self.lanes) > 1 else ():
            figures |= {f"{lane.target.name}.{name}": value for name, value in lane.figures().items()}
        return figures

    def metrics_text(self) -> str:
        """Prometheus exposition text."""
        return self._metrics.render(self.scaler.n_overdue)

    async def stream(self, request: Request) -> AsyncGenerator[StepEvent, None]:
        """Events of one request, as they happen; closing the iterator cancels the request.

        Raises:
            RequestError: the request can never be served.
            OverloadedError: the queue is full, or the wait would be too long.
            StepFailedError: the target failed on the request.
            ModelChangedError: the request was encoded for, or begun by, another model.
            TargetLostError: the router is shutting down.
        """
        if self._is_closed:
            raise TargetLostError("the router is shutting down")
        if request.model not in ("", self._model):
            raise ModelChangedError("the model that this request was meant for is no longer served; send it again")
        last = finish_event(request)
        if last is not None:
            self._learn_from(request, request.emitted)
            yield last
            return
        session = self._open_session(request)
        try:
            if session.sequence.request.method != AUTOREGRESSIVE:
                self._draft_client.begin(session.sequence)
            session.lane.dispatch()
            while True:
                event = await session.mailbox.get()
                if isinstance(event, SpectraError):
                    raise event
                if event.finish_reason in (STOP, LENGTH):
                    self._learn_from(request, session.sequence.tokens[session.sequence.n_prompt :])
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            self._close_session(session)

    def _learn_from(self, request: Request, output: list[int]) -> None:
        if self._learn is not None and request.teaches:
            self._learn(request.namespace or self.options.shared_namespace, output)

    def _open_session(self, request: Request) -> Session:
        """Choose a lane for the request, check admission and queue it there."""
        request = fill_defaults(request, self.options)
        needs = Needs() if request.method == AUTOREGRESSIVE else self._draft_client.needs(request.method, request)
        sequence = Sequence.of(self._next_seq, request, needs)
        lane = self._placement.choose(request)
        if not request.resumed:  # else a lost router has admitted it
            try:
                self._admission.check(sequence, lane)
            except OverloadedError:
                self._metrics.refused.inc()
                raise
        lane.scheduler.submit(sequence)
        logger.debug("sequence %d is in %s", sequence.seq, lane.target.name)
        self._next_seq += 1
        return self._sessions.open(sequence, lane)

    def _close_session(self, session: Session) -> None:
        self._sessions.close(session)
        session.lane.cancel(session.sequence)
        if self._spans is not None:
            self._spans.finish(session.sequence)
        if session.sequence.request.method != AUTOREGRESSIVE:
            self._draft_client.end(session.sequence)
        session.lane.dispatch()

    def on_commit(self, lane: Lane, commits: list[Commit]) -> None:
        self._draft_rounds.start(lane, commits)

    def on_sent(self, lane: Lane, step: Step, result: StepResult, events: list[tuple[Sequence, StepEvent]]) -> None:
        self._metrics.count_step(lane.target.name, step, result, sum(len(event.token_ids) for _, event in events))
        self._sessions.deliver(events)
        self._draft_rounds.settle()

    def on_failure(self, sequence: Sequence, error: str) -> None:
        extra = {"request_id": sequence.request.request_id}
        logger.error("the target failed on sequence %d: %s", sequence.seq, error, extra=extra)
        self._sessions.fail(sequence, StepFailedError(error))

    def on_up(self, lane: Lane) -> None:
        self._rebalancer.fill(lane)

    def on_down(self, lane: Lane, n_running: int) -> None:
        self._metrics.prefilled_again.inc(n_running)
        self._rebalancer.schedule_failover(lane)

    def on_recovery(self, lane: Lane, seconds: float) -> None:
        logger.info("%s answers again, %.2f s after it was lost", lane.target.name, seconds)
        self._metrics.recovery_seconds.observe(seconds)
