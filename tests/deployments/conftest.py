"""A real pipeline without Ray: stages in threads behind Unix sockets, a router in the test's event loop."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from deployments.observability.request_spans import RequestSpans
from deployments.options import RouterOptions
from deployments.pipeline.connection import Pipeline
from deployments.pipeline.endpoints import Endpoints
from deployments.router.draft_client import DraftClient, InlineDraftClient
from deployments.router.lane_connection import TargetClient
from deployments.router.router import Router
from deployments.stage.worker import StageWorker
from engine.errors import TargetLostError
from engine.events import StepEvent
from engine.loop import Completion, Engine
from engine.model.loader import load_shard, load_spec
from engine.model.ranges import split_layers
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.stage.stage import Stage
from engine.target.info import TargetInfo, positions
from engine.target.loading import grammars_of, plan_cache
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from speculators.pool import SpeculatorPool

CPU = torch.device("cpu")
SECRET = b"k" * 32
METHODS = ("autoregressive", "pld", "spectra-core", "pld+spectra-core")


class Stages:
    """The stages of one pipeline, each in threads of its own.

    Args:
        path: checkpoint.
        info: of the target.
        n: stages.
        kinds: class of each stage, or a function that makes it; tests bring failing ones.
        transport: links between them.
    """

    def __init__(
        self, path: Path, info: TargetInfo, n: int, kinds: Sequence[type[Stage]], transport: str = "auto"
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="st-")
        self.workers = []
        for i, layers in enumerate(split_layers(info.spec.n_layers, n)):
            shard = load_shard(path, layers, dtype=torch.float32, device=CPU, n_positions=positions(info))
            kind = kinds[i]
            more = {"grammars": grammars_of(path, info.spec)} if isinstance(kind, type) else {}  # functions know theirs
            stage = kind(shard, info.n_blocks, info.block_size, **more)
            self.workers.append(StageWorker(stage, CPU, f"unix:{self._folder.name}/{i}", SECRET, transport))
        addresses = [worker.address for worker in self.workers]
        for worker, following in zip(self.workers, [*addresses[1:], None], strict=True):
            worker.start(following)
        self.endpoints = Endpoints(addresses[0], addresses[-1], SECRET, info)

    @property
    def n_sequences(self) -> int:
        """Sequences any stage still holds state of."""
        return max(worker._stage.n_sequences for worker in self.workers)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self._folder.cleanup()


@dataclass
class Answer:
    """All events of one request."""

    events: list[StepEvent] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        return [token for event in self.events for token in event.token_ids]


@dataclass
class Served:
    """A router on pipelines that can be replaced, one per lane."""

    path: Path
    info: TargetInfo
    pipelines: list[Stages]
    router: Router = field(init=False)
    hangs: list[tuple[int, str]] = field(default_factory=list)  # lane, reason

    @property
    def stages(self) -> Stages:
        """The first lane's, and the only one's of most tests."""
        return self.pipelines[0]

    async def connect(self, lane: int = 0) -> Pipeline:
        """What the router deployment does: try until a pipeline answers."""
        while True:
            try:
                return await Pipeline.connect(self.pipelines[lane].endpoints)
            except TargetLostError:
                await asyncio.sleep(0.02)

    def target(self, lane: int) -> TargetClient:
        """Where a lane's pipeline comes from."""

        async def report_hang(reason: str) -> None:
            self.hangs.append((lane, reason))

        return TargetClient(f"lane-{lane}", lambda: self.connect(lane), report_hang)

    def replace(self, kinds: Sequence[type[Stage]] | None = None, lane: int = 0) -> None:
        """A fresh pipeline, as Serve brings up after a stage died."""
        n = len(self.pipelines[lane].workers)
        self.pipelines[lane].close()
        self.pipelines[lane] = Stages(self.path, self.info, n, kinds or [Stage] * n)

    async def answer(self, job: Request, **more: Any) -> Answer:
        return Answer([event async for event in self.router.stream(msgspec.structs.replace(job, **more))])

    async def settled(self) -> dict[str, int | bool]:
        """The router's state once every stage has heard that nothing is left; fails if that does not happen."""
        deadline = time.monotonic() + 60
        up = [stages for stages, lane in zip(self.pipelines, self.router.lanes, strict=True) if lane.is_up]
        while time.monotonic() < deadline and (
            any(stages.n_sequences for stages in up) or any(lane.scheduler.sequences for lane in self.router.lanes)
        ):
            await asyncio.sleep(0.01)
        assert not any(stages.n_sequences for stages in up)
        state = await self.router.state()
        assert state["free_blocks"] == state["blocks"]
        assert [state[name] for name in ("sessions", "running", "waiting", "speculator_states")] == [0, 0, 0, 0]
        return state


Serving = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture(scope="session")
def info(tiny_checkpoint: Path) -> TargetInfo:
    options = TargetOptions(str(tiny_checkpoint), kv_bytes=4 << 20, block_size=16, max_model_len=1024)
    return plan_cache(load_spec(tiny_checkpoint), options, torch.float32)


@pytest.fixture(scope="session")
def small_cache(info: TargetInfo) -> TargetInfo:
    """Room for about three sequences of a hundred tokens."""
    return replace(info, n_blocks=24, max_model_len=368)


@pytest.fixture
def serving(tiny_checkpoint: Path, info: TargetInfo) -> Serving:
    """``async with serving(n_stages=2, max_sequences=4) as served: await served.answer(job)``."""

    @asynccontextmanager
    async def serve(
        n_stages: int = 1,
        kinds: Sequence[type[Stage]] | None = None,
        draft_client: DraftClient | None = None,
        target: TargetInfo = info,
        learn: Callable[[str, list[int]], None] | None = None,
        transport: str = "auto",
        n_lanes: int = 1,
        options: RouterOptions | None = None,
        spans: RequestSpans | None = None,
        **limits: int,
    ) -> AsyncIterator[Served]:
        pipelines = [
            Stages(tiny_checkpoint, target, n_stages, kinds or [Stage] * n_stages, transport) for _ in range(n_lanes)
        ]
        served = Served(tiny_checkpoint, target, pipelines)
        scheduler = SchedulerOptions(n_micro_batches=n_stages, **limits)
        speculators = draft_client or InlineDraftClient(SpeculatorPool(), target.spec.vocab_size)
        any_wait = RouterOptions("tiny", max_wait=None)  # a busy machine must not refuse
        chosen = replace(options or any_wait, scheduler=scheduler)
        served.router = Router(
            chosen, target, speculators, [served.target(i) for i in range(n_lanes)], learn, spans=spans
        )
        served.router.start()
        try:
            yield served
        finally:
            await served.router.close()
            for stages in served.pipelines:
                stages.close()

    return serve


@pytest.fixture(scope="session")
def offline(tiny_checkpoint: Path, info: TargetInfo) -> Callable[[Request], Completion]:
    """What plain decoding in one process writes for a job, whatever its method: the oracle of all texts."""
    options = TargetOptions(str(tiny_checkpoint), kv_bytes=4 << 20, block_size=16, max_model_len=1024)
    engine = Engine(LocalTarget.load(options, tiny_checkpoint), SpeculatorPool())
    known: dict[tuple[object, ...], Completion] = {}

    def complete(job: Request) -> Completion:
        key = (tuple(job.prompt), str(job.params))
        if key not in known:
            known[key] = engine.complete(Request(job.prompt, job.params))
        return known[key]

    return complete


@pytest.fixture(scope="session")
def make_job() -> Callable[..., Request]:
    """``make_job(3, "pld", temperature=0.8)``: prompt and seed follow from the number."""

    @lru_cache
    def prompt(number: int) -> tuple[int, ...]:
        chance = random.Random(number)
        motif = [chance.randrange(3, 300) for _ in range(5)]
        return (1, *motif, *(chance.randrange(3, 300) for _ in range(number % 7)), *motif, *motif)

    def make(number: int, method: str = "autoregressive", **params: object) -> Request:
        chosen = {"max_tokens": 40, "seed": number, "stop_ids": (2,)} | params
        return Request(list(prompt(number)), SamplingParams(**chosen), method, max_nodes=32)  # type: ignore[arg-type]

    return make
