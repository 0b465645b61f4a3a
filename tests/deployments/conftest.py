"""A real pipeline without Ray: stages in threads with Unix sockets, a router in the test's event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from deployments.channels import async_channel, channel
from deployments.observability.traces import RequestSpans
from deployments.options import RouterOptions
from deployments.pipeline.connection import Pipeline
from deployments.router.drafting import DraftClient, InlineDraftClient
from deployments.router.lane_connection import TargetClient
from deployments.router.router import Router
from deployments.stage.transports import negotiation, process_group
from engine.errors import TargetLostError
from engine.events import RequestStats, StepEvent
from engine.loop import Completion, Engine
from engine.model.loader import load_spec
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.stage.stage import Stage
from engine.target_model.info import TargetInfo, plan_cache
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from speculators.pool import SpeculatorPool
from tests.deployments.slow_stage import GATE
from tests.deployments.threaded_stages import ThreadedStages
from tests.support.waiting import LIMIT_S, wait_until_async

METHODS = ("autoregressive", "pld", "spectra-core", "pld+spectra-core")
MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


@dataclass(eq=False)
class RunningRequest:
    """The events of a request so far; awaiting it waits for the last one."""

    job: Request
    events: list[StepEvent] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def __await__(self) -> Generator[Any, None, RunningRequest]:
        assert self.task is not None
        yield from self.task.__await__()
        return self

    def cancel(self) -> None:
        assert self.task is not None
        self.task.cancel()

    @property
    def token_ids(self) -> list[int]:
        return [token for event in self.events for token in event.token_ids]

    @property
    def stats(self) -> RequestStats:
        stats = self.events[-1].stats
        assert stats is not None
        return stats


@dataclass
class ServedPipelines:
    """A router on pipelines that can be replaced, one per lane."""

    path: Path
    info: TargetInfo
    pipelines: list[ThreadedStages]
    offline: Offline
    router: Router = field(init=False)
    hangs: list[tuple[int, str]] = field(default_factory=list)  # lane, reason
    begun: list[RunningRequest] = field(default_factory=list)

    @property
    def stages(self) -> ThreadedStages:
        """Those of the first lane."""
        return self.pipelines[0]

    async def connect(self, lane: int = 0) -> Pipeline:
        """Try until a pipeline answers, as the router deployment does."""
        while True:
            try:
                return await Pipeline.connect(self.pipelines[lane].endpoints)
            except TargetLostError:
                await asyncio.sleep(0.02)

    def target(self, lane: int) -> TargetClient:
        async def report_hang(reason: str) -> None:
            self.hangs.append((lane, reason))

        return TargetClient(f"lane-{lane}", lambda: self.connect(lane), report_hang)

    def another_router(self, info: TargetInfo | None = None, draft_client: DraftClient | None = None) -> Router:
        """A router on the first lane's stages, as Serve starts one after the old one; it is not started."""
        drafts = draft_client or InlineDraftClient(SpeculatorPool(), self.info.spec.vocab_size)
        return Router(self.router.options, info or self.info, drafts, [self.target(0)])

    async def up(self) -> None:
        """Wait until every lane has a pipeline."""
        await wait_until_async(lambda: all(lane.is_up for lane in self.router.lanes))

    async def lose(self, lane: int = 0, stage: int = -1) -> None:
        """End one stage of a lane for good, and wait until the router has noticed."""
        workers = self.pipelines[lane].workers
        workers[stage].close()
        if workers[stage] not in (workers[0], workers[-1]):
            GATE.open()  # its neighbours notice the loss of a stage in the middle, and not while they are held
        await wait_until_async(lambda: not self.router.lanes[lane].is_up)

    def replace(self, kinds: Sequence[type[Stage]] | None = None, lane: int = 0) -> None:
        """Start a fresh pipeline, as Serve does after a stage died."""
        n = len(self.pipelines[lane].workers)
        self.pipelines[lane].close()
        self.pipelines[lane] = ThreadedStages(self.path, self.info, n, kinds or [Stage] * n)

    async def answer(self, job: Request, **more: Any) -> RunningRequest:
        answer = RunningRequest(msgspec.structs.replace(job, **more))
        await self._read(answer)
        return answer

    def begin(self, job: Request, **more: Any) -> RunningRequest:
        """Start a request; its answer grows while the event loop runs."""
        answer = RunningRequest(msgspec.structs.replace(job, **more))
        answer.task = asyncio.create_task(self._read(answer))
        self.begun.append(answer)
        return answer

    async def _read(self, answer: RunningRequest) -> None:
        async for event in self.router.stream(answer.job):
            answer.events.append(event)

    async def compare(self, answers: Sequence[RunningRequest]) -> None:
        """Wait for answers; each must be the text of the offline engine, without what was emitted before."""
        for answer in answers:
            await answer
            wanted = self.offline(answer.job)
            assert answer.token_ids == wanted.token_ids[len(answer.job.emitted) :], answer.job.method
            assert answer.events[-1].finish_reason == wanted.finish_reason

    async def check(self, *jobs: Request, **more: Any) -> list[RunningRequest]:
        """Run jobs together, and compare their answers with the offline engine's."""
        answers = [self.begin(job, **more) for job in jobs]
        await self.compare(answers)
        return answers

    async def settled(self) -> dict[str, int | bool]:
        """The router's state once every stage has heard that nothing is left; fails if that does not happen."""
        up = [stages for stages, lane in zip(self.pipelines, self.router.lanes, strict=True) if lane.is_up]
        await wait_until_async(
            lambda: (
                not any(stages.n_sequences for stages in up)
                and not any(lane.scheduler.sequences for lane in self.router.lanes)
            ),
            "sequences are left",
        )
        state = await self.router.state()
        assert state["free_blocks"] == state["blocks"]
        assert [state[name] for name in ("sessions", "running", "waiting", "speculator_states")] == [0, 0, 0, 0]
        return state

    async def end(self) -> None:
        """Cancel the answers that ``begin`` has left; nothing of them may remain."""
        GATE.open()
        for answer in self.begun:
            answer.cancel()
        await asyncio.gather(*self.begun, return_exceptions=True)
        if self.begun and not self.router._is_closed:
            await self.settled()


Serving = Callable[..., AbstractAsyncContextManager[ServedPipelines]]


@pytest.fixture(scope="session")
def info(tiny_checkpoint: Path) -> TargetInfo:
    options = TargetOptions(str(tiny_checkpoint), kv_bytes=4 << 20, block_size=16, max_model_len=1024)
    return plan_cache(load_spec(tiny_checkpoint), options, torch.float32.itemsize)


@pytest.fixture(scope="session")
def small_cache(info: TargetInfo) -> TargetInfo:
    """Room for about three sequences of a hundred tokens."""
    return replace(info, n_blocks=24, max_model_len=368)


@pytest.fixture
def slow_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give peers more time for handshakes and transports than a busy machine takes."""
    for module, name in (
        (channel, "HANDSHAKE_S"),
        (async_channel, "HANDSHAKE_S"),
        (negotiation, "ANSWER_S"),
        (process_group, "WAIT_S"),
        (process_group, "BUILD_S"),
    ):
        monkeypatch.setattr(module, name, LIMIT_S)


@pytest.fixture
def serving(tiny_checkpoint: Path, info: TargetInfo, offline: Offline, slow_peers: None) -> Serving:
    """``async with serving(n_stages=2, max_sequences=4) as served: await served.check(job)``."""

    @asynccontextmanager
    async def serve(
        n_stages: int = 1,
        kinds: Sequence[type[Stage]] | None = None,
        draft_client: DraftClient | None = None,
        target: TargetInfo = info,
        learn: Callable[[str, list[int]], None] | None = None,
        transport: str = "auto",
        n_lanes: int = 1,
        n_ranks: int = 1,
        options: RouterOptions | None = None,
        spans: RequestSpans | None = None,
        **limits: int,
    ) -> AsyncIterator[ServedPipelines]:
        pipelines = [
            ThreadedStages(tiny_checkpoint, target, n_stages, kinds or [Stage] * n_stages, transport, n_ranks)
            for _ in range(n_lanes)
        ]
        served = ServedPipelines(tiny_checkpoint, target, pipelines, offline)
        scheduler = SchedulerOptions(n_micro_batches=n_stages, **limits)
        speculators = draft_client or InlineDraftClient(SpeculatorPool(), target.spec.vocab_size)
        chosen = replace(options or patient(), scheduler=scheduler)
        served.router = Router(
            chosen, target, speculators, [served.target(i) for i in range(n_lanes)], learn, spans=spans
        )
        served.router.start()
        try:
            yield served
            await served.end()
        finally:
            GATE.open()
            await served.router.close()
            for stages in served.pipelines:
                stages.close()

    return serve


def patient(**fields: Any) -> RouterOptions:
    """Options of a router that a busy machine does not make refuse requests or give up a pipeline."""
    return RouterOptions("tiny", **{"max_wait": None, "step_deadline": LIMIT_S} | fields)


@pytest.fixture(scope="session")
def offline(tiny_checkpoint: Path) -> Offline:
    """Plain decoding in one process, whatever a job's method: the oracle of all texts."""
    options = TargetOptions(str(tiny_checkpoint), kv_bytes=4 << 20, block_size=16, max_model_len=1024)
    engine = Engine(LocalTarget.load(options, tiny_checkpoint), SpeculatorPool())
    known: dict[tuple[object, ...], Completion] = {}

    def complete(job: Request) -> Completion:
        key = (tuple(job.prompt), str(job.params))
        if key not in known:
            known[key] = engine.complete(Request(job.prompt, job.params))
        return known[key]

    return complete


@lru_cache
def _prompt(number: int) -> tuple[int, ...]:
    chance = random.Random(number)
    motif = [chance.randrange(3, 300) for _ in range(5)]
    return (1, *motif, *(chance.randrange(3, 300) for _ in range(number % 7)), *motif, *motif)


def job_of(number: int, method: str = "autoregressive", n_prompt: int = 0, **params: object) -> Request:
    """``job_of(3, "pld", temperature=0.8)``: prompt and seed follow from the number."""
    chosen = {"max_tokens": 40, "seed": number, "stop_ids": (2,)} | params
    tokens = [*_prompt(number)]
    if n_prompt:
        chance = random.Random(number)
        tokens = ([*tokens, *(chance.randrange(3, 300) for _ in range(n_prompt // 2))] * 2)[:n_prompt]
    return Request(tokens, SamplingParams(**chosen), method, max_nodes=32)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def make_job() -> MakeJob:
    return job_of
