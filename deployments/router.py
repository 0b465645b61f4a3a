"""The router: decode sessions, admission, verification batches. Plain asyncio, no Ray (``builder`` wraps it).

One loop receives results and at once sends the next step; drafting happens in between; tokens are handed to their
streams only after the next step is on its way, so nobody's network stands between two steps.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from deployments.drafters import Drafter
from deployments.messages import SubmitRequest
from deployments.metrics import RouterMetrics
from deployments.pipeline import Pipeline
from engine.drafting import AUTOREGRESSIVE, Turn, apply_drafts, take_turn
from engine.errors import SpectraError, StepFailedError, TargetLostError
from engine.events import StepEvent
from engine.protocol import Needs
from engine.scheduler import Progress, Scheduler, SchedulerOptions
from engine.sequence import Sequence
from engine.stats import StatsCounter
from engine.step import Step, StepResult
from engine.target import TargetInfo

logger = logging.getLogger(__name__)

RECONNECT_S = 0.1  # pause between two attempts to reach a pipeline


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """Defaults and limits of the router."""

    model: str = "demo"  # name in metrics
    method: str = AUTOREGRESSIVE  # for requests that name none
    max_nodes: int = 64  # likewise
    limit_nodes: int = 256  # most a request may ask for
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)


@dataclass(slots=True, eq=False)
class _Session:
    """One request: its sequence and the mailbox its stream reads from."""

    sequence: Sequence
    mailbox: asyncio.Queue[StepEvent | SpectraError] = field(default_factory=asyncio.Queue)
    last_event: float = field(default_factory=time.perf_counter)  # seconds
    n_events: int = 0


class Router:
    """Serves one pipeline at a time.

    Args:
        options: see there.
        info: of the target; a replacement pipeline must be of the same kind.
        drafter: where speculators run.
        connect: yields a connected pipeline, waiting for one to come up; called again when it is lost.
    """

    def __init__(
        self,
        options: RouterOptions,
        info: TargetInfo,
        drafter: Drafter,
        connect: Callable[[], Awaitable[Pipeline]],
    ) -> None:
        self.options = options
        self.info = info
        self._drafter = drafter
        self._connect = connect
        self._scheduler = Scheduler(info, options.scheduler)
        self._metrics = RouterMetrics(options.model)
        self._pipeline: Pipeline | None = None
        self._sessions: dict[int, _Session] = {}
        self._in_flight: dict[int, tuple[Step, list[Sequence]]] = {}
        self._drafting: set[asyncio.Task[None]] = set()
        self._next_seq = 0
        self._next_step = 0
        self._n_lost = 0
        self._runner: asyncio.Task[None] | None = None

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve; needs a running event loop."""
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop serving: live streams get an error."""
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        if self._pipeline is not None:
            self._pipeline.close()
        for session in self._sessions.values():
            session.mailbox.put_nowait(TargetLostError("the router is shutting down"))

    @property
    def is_ready(self) -> bool:
        """Whether a pipeline is up."""
        return self._pipeline is not None

    async def state(self) -> dict[str, int | bool]:
        """Figures for health checks and leak tests."""
        return {
            "ready": self.is_ready,
            "running": self._scheduler.n_running,
            "waiting": self._scheduler.n_waiting,
            "free_blocks": self._scheduler.blocks.n_free,
            "blocks": self._scheduler.blocks.n_blocks,
            "sessions": len(self._sessions),
            "speculator_states": await self._drafter.n_live(),
            "pipelines_lost": self._n_lost,
        }

    def metrics_text(self) -> str:
        """Prometheus exposition text."""
        return self._metrics.render(self._scheduler)

    # -- requests ------------------------------------------------------------------------------------------------

    async def stream(self, request: SubmitRequest) -> AsyncIterator[StepEvent]:
        """Events of one request, as they happen; closing the iterator cancels it.

        Raises:
            RequestError: it can never be served.
            OverloadedError: the queue is full.
            StepFailedError: the target failed on it.
        """
        session = self._open(request)
        try:
            while True:
                event = await session.mailbox.get()
                if isinstance(event, SpectraError):
                    raise event
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            self._close_session(session)

    def _open(self, request: SubmitRequest) -> _Session:
        method = request.method or self.options.method
        max_nodes = self.options.max_nodes if request.max_nodes is None else request.max_nodes
        needs = Needs() if method == AUTOREGRESSIVE else self._drafter.needs(method)
        sequence = Sequence(
            self._next_seq,
            list(request.prompt),
            len(request.prompt),
            request.params,
            StatsCounter(len(request.prompt)),
            method,
            min(max_nodes, self.options.limit_nodes),
            request.priority,
            needs,
        )
        self._scheduler.submit(sequence)
        self._next_seq += 1
        if method != AUTOREGRESSIVE:
            self._drafter.begin(sequence, request.namespace)
        session = self._sessions[sequence.seq] = _Session(sequence)
        self._dispatch()
        return session

    def _close_session(self, session: _Session) -> None:
        if self._sessions.pop(session.sequence.seq, None) is None:
            return
        self._scheduler.cancel(session.sequence)
        if session.sequence.method != AUTOREGRESSIVE:
            self._drafter.end(session.sequence)
        self._dispatch()

    # -- the step loop -------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._pipeline = await self._connect()
            self._dispatch()
            try:
                while True:
                    self._absorb(await self._pipeline.receive())
            except TargetLostError as error:
                logger.warning("pipeline lost with %d steps in flight: %s", len(self._in_flight), error)
            self._lose_pipeline()
            await asyncio.sleep(RECONNECT_S)

    def _lose_pipeline(self) -> None:
        """Live sequences go back to the queue; the next pipeline prefills them from prompt and output."""
        if self._pipeline is not None:
            self._pipeline.close()
        self._pipeline = None
        self._n_lost += 1
        self._in_flight.clear()
        self._scheduler.lose_target()

    def _dispatch(self) -> None:
        """Keep every stage busy: send steps while there is work and room."""
        if self._pipeline is None:
            return
        while len(self._in_flight) < self.options.scheduler.n_micro_batches:
            step = self._scheduler.next_step(self._next_step)
            if step is None:
                return
            self._next_step += 1
            self._in_flight[step.step_id] = (step, [self._scheduler.find(work.seq) for work in step.work])
            self._pipeline.send(step)

    def _absorb(self, result: StepResult) -> None:
        """One result: commit, draft, send the next step, and only then tell the world."""
        step, sequences = self._in_flight.pop(result.step_id)
        if result.error:
            self._fail(sequences, result.error)
            self._dispatch()
            return
        progress = self._scheduler.commit(step, result, sequences)
        self._draft(take_turn(progress, self._scheduler))
        self._dispatch()
        self._metrics.count_step(result.seconds)
        self._deliver(progress)

    def _draft(self, turn: Turn) -> None:
        if turn.is_empty:
            return
        drafts = self._drafter.draft(turn)
        if not inspect.isawaitable(drafts):
            apply_drafts(turn, drafts, self._scheduler)
            return

        async def finish() -> None:
            apply_drafts(turn, await drafts, self._scheduler)
            self._dispatch()

        task = asyncio.get_running_loop().create_task(finish())
        self._drafting.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._drafting.discard)

    def _deliver(self, progress: list[Progress]) -> None:
        now = time.perf_counter()
        for p in progress:
            session = self._sessions.get(p.sequence.seq)
            if session is None or p.event is None:
                continue
            self._metrics.count_event(p.event, now - session.last_event, session.n_events == 0)
            session.last_event = now
            session.n_events += 1
            session.mailbox.put_nowait(p.event)

    def _fail(self, sequences: list[Sequence], error: str) -> None:
        """A step the target could not run takes its own sequences with it, no others."""
        for sequence in sequences:
            sequence.in_flight = False
            self._scheduler.cancel(sequence)
            session = self._sessions.get(sequence.seq)
            if session is not None:
                session.mailbox.put_nowait(StepFailedError(error))
