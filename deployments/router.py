"""The router: decode sessions, admission, verification batches. Plain asyncio, no Ray (``builder`` wraps it).

One loop receives results and at once sends the next step; drafting happens in between; tokens are handed to their
streams only after the next step is on its way, so nobody's network stands between two steps.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable

from deployments.drafters import Drafter, Drafts
from deployments.messages import SubmitRequest
from deployments.metrics import RouterMetrics
from deployments.options import RouterOptions
from deployments.pipeline import Pipeline
from deployments.sessions import Session, Sessions
from engine.drafting import AUTOREGRESSIVE, Turn, apply_drafts, take_turn
from engine.errors import SpectraError, StepFailedError, TargetLostError
from engine.events import LENGTH, STOP, StepEvent
from engine.protocol import Needs
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.stats import StatsCounter
from engine.step import Step, StepResult
from engine.target import TargetInfo

logger = logging.getLogger(__name__)

RECONNECT_S = 0.1  # pause between two attempts to reach a pipeline


class Router:
    """Serves one pipeline at a time.

    Args:
        options: see there.
        info: of the target; a replacement pipeline must be of the same kind.
        drafter: where speculators run.
        connect: yields a connected pipeline, waiting for one to come up; called again when it is lost.
        learn: takes the namespace and the output of every request that ended well; must return at once.
    """

    def __init__(
        self,
        options: RouterOptions,
        info: TargetInfo,
        drafter: Drafter,
        connect: Callable[[], Awaitable[Pipeline]],
        learn: Callable[[str, list[int]], None] | None = None,
    ) -> None:
        self.options = options
        self.info = info
        self._drafter = drafter
        self._connect = connect
        self._learn = learn
        self._scheduler = Scheduler(info, options.scheduler)
        self._metrics = RouterMetrics(options.model)
        self._pipeline: Pipeline | None = None
        self._sessions = Sessions(self._metrics)
        self._in_flight: dict[int, tuple[Step, list[Sequence]]] = {}
        self._drafting: set[asyncio.Task[None]] = set()
        self._next_seq = 0
        self._next_step = 0
        self._n_lost = 0
        self._runner: asyncio.Task[None] | None = None
        self._closed = False

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve; needs a running event loop."""
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop serving: live streams get an error."""
        self._closed = True
        tasks = [*self._drafting] if self._runner is None else [self._runner, *self._drafting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None
        self._sessions.fail_all(TargetLostError("the router is shutting down"))

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

    async def stream(self, request: SubmitRequest) -> AsyncGenerator[StepEvent, None]:
        """Events of one request, as they happen; closing the iterator cancels it.

        Raises:
            RequestError: it can never be served.
            OverloadedError: the queue is full.
            StepFailedError: the target failed on it.
            TargetLostError: the router is shutting down.
        """
        if self._closed:
            raise TargetLostError("the router is shutting down")
        session = self._open(request)
        try:
            shared = self.options.shared_namespace
            self._begin(session, "" if request.namespace == shared else request.namespace)
            while True:
                event = await session.mailbox.get()
                if isinstance(event, SpectraError):
                    raise event
                if self._learn is not None and event.finish_reason in (STOP, LENGTH):
                    self._learn(request.namespace or shared, session.sequence.tokens[session.sequence.n_prompt :])
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            self._close_session(session)

    def _open(self, request: SubmitRequest) -> Session:
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
        return self._sessions.open(sequence)

    def _begin(self, session: Session, namespace: str) -> None:
        if session.sequence.method != AUTOREGRESSIVE:
            self._drafter.begin(session.sequence, namespace)
        self._dispatch()

    def _close_session(self, session: Session) -> None:
        self._sessions.close(session)
        self._scheduler.cancel(session.sequence)
        if session.sequence.method != AUTOREGRESSIVE:
            self._drafter.end(session.sequence)
        self._dispatch()

    # -- the step loop -------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                self._pipeline = await self._connect()
                # Numbers of their own for each connection: an answer to somebody else's step must not pass for one.
                self._next_step = secrets.randbits(48)
                self._dispatch()
                while True:
                    self._absorb(await self._pipeline.receive())
            except TargetLostError as error:
                logger.warning("pipeline lost with %d steps in flight: %s", len(self._in_flight), error)
            except Exception:  # a bug, but the requests that are alive had no part in it
                logger.exception("the step loop failed; starting over with a clean pipeline")
            self._lose_pipeline()
            await asyncio.sleep(RECONNECT_S)

    def _lose_pipeline(self) -> None:
        """Live sequences go back to the queue; the next pipeline prefills them from prompt and output."""
        if self._pipeline is None:
            return
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
        sent = self._in_flight.pop(result.step_id, None)
        if sent is None:
            raise TargetLostError(f"the target answered step {result.step_id}, which was not sent")
        step, sequences = sent
        if result.error:
            self._fail(sequences, result.error)
            self._dispatch()
            return
        try:
            progress = self._scheduler.commit(step, result, sequences)
            self._draft(take_turn(progress, self._scheduler))
        except Exception:
            self._fail(sequences, "the step's answer could not be taken in")
            raise
        self._dispatch()
        self._metrics.count_step(result.seconds)
        self._sessions.deliver(progress)

    def _draft(self, turn: Turn) -> None:
        if turn.is_empty:
            return
        drafts = self._drafter.draft(turn)
        if not inspect.isawaitable(drafts):
            self._apply(turn, drafts)
            return
        task = asyncio.get_running_loop().create_task(self._finish_draft(turn, drafts))
        self._drafting.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._drafting.discard)

    async def _finish_draft(self, turn: Turn, drafts: Awaitable[Drafts]) -> None:
        """Drafts that come later; without them if that fails, for nobody else would ever wake these sequences."""
        try:
            arrived = await drafts
        except Exception:
            logger.exception("drafting failed; %d sequences go on without", len(turn.drafting))
            arrived = {}
        self._apply(turn, arrived)
        self._dispatch()

    def _apply(self, turn: Turn, drafts: Drafts) -> None:
        try:
            apply_drafts(turn, drafts, self._scheduler)
        except Exception:
            logger.exception("a draft is no tree; %d sequences go on without", len(turn.drafting))
            apply_drafts(turn, {}, self._scheduler)

    def _fail(self, sequences: list[Sequence], error: str) -> None:
        """A step the target could not run takes its own sequences with it, no others."""
        for sequence in sequences:
            sequence.in_flight = False
            self._scheduler.cancel(sequence)
            self._sessions.fail(sequence, StepFailedError(error))
