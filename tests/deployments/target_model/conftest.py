"""Supervised pipelines, with real stages in threads of this process instead of Ray's actors."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deployments.pipeline.connection import Pipeline
from deployments.pipeline.endpoints import StageEndpoint
from deployments.pipeline.stage_reports import StagePlan, StageReplacement, StageRoom
from deployments.stage.actor import Loaded, Pulse
from deployments.stage.worker import StageWorker
from deployments.target_model import spares, standbys
from deployments.target_model.supervisor import supervise_stages
from engine.errors import ConfigError, TargetLostError
from engine.model.loader import load_shard
from engine.model.ranges import split_layers
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.stage.stage import Stage
from engine.step import SequenceStart, Step, StepResult, Work
from engine.target_model.info import TargetInfo, positions
from engine.target_model.options import LAYERS, Resolution
from tests.deployments.slow_stage import GATE, Gated
from tests.support.waiting import LIMIT_S, wait_until_async

CPU = torch.device("cpu")


@dataclass(eq=False)
class LocalBundle:
    node: str
    is_own: bool = False
    place: str = ""  # the ranks of a stage share it

    def is_with(self, other: LocalBundle) -> bool:
        return self.place == other.place


class LocalBundles:
    """Implements ``Bundles``: each stage is on a node of its own."""

    def __init__(self, n: int, n_ranks: int) -> None:
        self.here, self.n_ranks = "n0", n_ranks
        self.own = [LocalBundle(f"n{i}", True, f"own {i}") for i in range(n) for _ in range(n_ranks)]
        self.reserved: list[LocalBundle] = []
        self.released: list[LocalBundle] = []
        self.drained: set[str] = set()
        self.has_room = True  # for a bundle that is reserved
        self.has_gcs = True
        self.away_from: set[str] = set()  # of the newest reservation

    async def draining(self) -> frozenset[str]:
        if not self.has_gcs:
            raise ConnectionError("no answer")
        return frozenset(self.drained)

    async def nodes(self, bundles: list[LocalBundle]) -> dict[LocalBundle, str]:
        return {bundle: bundle.node for bundle in bundles}

    async def reserve(self, away_from: set[str]) -> list[LocalBundle]:
        self.away_from = away_from
        number = len(self.reserved) // self.n_ranks
        for _ in range(self.n_ranks):
            self.reserved.append(LocalBundle(f"r{number}" if self.has_room else "", place=f"reserved {number}"))
        return self.reserved[-self.n_ranks :]

    async def release(self, bundle: LocalBundle) -> None:
        assert not bundle.is_own
        self.released.append(bundle)


class ThreadStage:
    """Implements ``StageHandle``, for a stage in this process. Its leader computes all; other ranks do nothing."""

    def __init__(self, bundle: LocalBundle, folder: Path, plan: StagePlan, pipeline: Supervised) -> None:
        self.name = "a stage's process"
        self.bundle = bundle
        self.seen = time.monotonic()
        self.number: int | None = None
        self.identity: Any = None
        self.endpoint: StageEndpoint | None = None
        self.worker: StageWorker | None = None
        self.is_silent = False
        self.transport = "auto"
        self.refusal = ""  # why there is no plan
        self.served: tuple[Any, ...] = ()  # arguments of the newest call of ``serve``
        self.is_dead = False
        self._folder, self._plan, self._pipeline = folder, plan, pipeline
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def arrive(self) -> None:
        while not self.bundle.node:  # until there is room
            await asyncio.sleep(0.01)
        if self._pipeline.n_cannot_start > 0:
            self._pipeline.n_cannot_start -= 1
            raise TargetLostError("its process ended at once")
        self.identity = SimpleNamespace(pid=id(self), node=self.bundle.node, ip="127.0.0.1", started=0)

    async def prepare(self) -> None:
        pass

    async def room(self) -> StageRoom:
        return StageRoom(1 << 30, Resolution(LAYERS))

    async def plan(self, rooms: Sequence[StageRoom]) -> StagePlan:
        if self.refusal:
            raise ConfigError(self.refusal)
        return self._plan

    async def come_up(self, number: int, secret: bytes, plan: StagePlan) -> Loaded:
        self.number, self.name = number, f"stage {number}"
        self.transport = self._pipeline.begins(number, self)
        try:
            stage = await asyncio.to_thread(self._pipeline.load, number)
        except OSError as error:
            raise TargetLostError(str(error)) from error
        folder = tempfile.mkdtemp(dir=self._folder)
        if number % plan.tensor_parallel:
            self.endpoint = StageEndpoint("n", f"unix:{folder}/s")
            return Loaded(0.0, 0)
        self.worker = StageWorker(stage, CPU, f"unix:{folder}/s", secret, self.transport)
        self.endpoint = StageEndpoint("n", self.worker.address)
        return Loaded(0.0, 0)

    async def serve(self, next_address: str | None, rows_address: str, ranks: tuple[str, ...] = ()) -> None:
        self.served = next_address, rows_address, ranks
        if self.worker is not None:
            await asyncio.to_thread(self.worker.start, next_address, rows_address)

    async def pulse(self, within: float | None = None) -> Pulse:
        if self.is_silent:
            raise TimeoutError
        if self.worker is None:
            return Pulse(0.0)
        self._check_transports()
        since = self.worker.busy_since
        return Pulse(0.0 if since is None else time.monotonic() - since, self.worker.n_sequences)

    def mark_dead(self, reason: str) -> None:
        if not self._lost.done():
            self._lost.set_result(reason)

    async def lost(self) -> str:
        while not self._lost.done():
            self._check_transports()
            await asyncio.wait((self._lost,), timeout=0.05)
        return self._lost.result()

    def _check_transports(self) -> None:
        if self.worker is not None and self.worker.fault:
            raise ConfigError(self.worker.fault)

    async def end(self) -> None:
        self.kill()

    retire = end

    def kill(self) -> None:
        self.is_dead = True
        if self.worker is not None:
            self.worker.close()


class Supervised:
    """A group of stages in threads."""

    def __init__(
        self,
        path: Path,
        info: TargetInfo,
        folder: Path,
        n: int = 3,
        limit: float = LIMIT_S,
        standbys: int = 0,
        n_ranks: int = 1,
    ) -> None:
        self.broken: set[int] = set()  # processes that cannot load
        self.may_load = threading.Event()  # while it is cleared, processes wait before they load
        self.may_load.set()
        self.transports: dict[int, str] = {}  # of the stage that starts next
        self.n_cannot_start = 0  # processes that end at once
        self.started: list[int] = []
        self.stages: dict[int, ThreadStage] = {}  # the newest of each number
        self.launched: list[ThreadStage] = []
        self.bundles = LocalBundles(n, n_ranks)
        self._path, self._info, self._folder = path, info, folder
        self._plan = StagePlan(info, tuple(split_layers(info.spec.n_layers, n)), tensor_parallel=n_ranks)
        self.supervisor = supervise_stages(self._launch, self.bundles, standbys, limit)  # type: ignore[arg-type]

    def _launch(self, bundle: LocalBundle) -> Any:
        self.launched.append(ThreadStage(bundle, self._folder, self._plan, self))
        if bundle.is_own:
            self.stages.setdefault(self.bundles.own.index(bundle), self.launched[-1])
        return self.launched[-1]

    def begins(self, number: int, stage: ThreadStage) -> str:
        """Note that a process becomes a stage; returns the transport that it allows."""
        self.started.append(number)
        self.stages[number] = stage
        return self.transports.get(number, stage.transport)

    def load(self, number: int) -> Stage:
        assert self.may_load.wait(LIMIT_S)
        if number in self.broken:
            raise OSError("model.safetensors is gone")
        layers = self._plan.ranges[number // self._plan.tensor_parallel]
        shard = load_shard(self._path, layers, dtype=torch.float32, device=CPU, n_positions=positions(self._info))
        return Gated(shard, self._info.n_blocks, self._info.block_size)

    @property
    def state(self) -> dict[str, Any]:
        return self.supervisor.state()

    @property
    def standby_nodes(self) -> list[object]:
        """Nodes of the standbys that are ready."""
        return [one["node"] for one in self.state["standbys"] if one["ready"]]

    @property
    def is_alive(self) -> bool:
        return any(stage.worker is not None and stage.worker.is_alive for stage in self.stages.values())

    async def lose(self, *numbers: int) -> None:
        for number in numbers:
            await self.stages[number].end()
            self.stages[number].mark_dead("killed")

    async def replaced(self, n: int = 1) -> StageReplacement:
        """Wait for the ``n``-th replacement, finished or given up."""
        await wait_until_async(lambda: len(self.supervisor.replacements) >= n)
        return self.supervisor.replacements[n - 1]

    async def standbys_on(self, *nodes: str) -> None:
        """Wait until these nodes have the ready standbys."""
        await wait_until_async(lambda: self.standby_nodes == [*nodes])

    async def answer(self) -> StepResult:
        """The answer to one prompt's step, from whichever pipeline there is."""
        while True:
            try:
                pipeline = await Pipeline.connect(await self.supervisor.endpoints("n"))
                try:
                    pipeline.send(prompt_step())
                    return await pipeline.receive()
                finally:
                    pipeline.close()
            except TargetLostError:
                await asyncio.sleep(0.02)


def prompt_step() -> Step:
    start = SequenceStart(0, SamplingParams(max_tokens=5, seed=3), 3, Needs())
    return Step(7, [Work(0, 0, [5, 6, 7], new_blocks=[0], draw=True)], [start])


Supervise = Callable[..., AbstractAsyncContextManager[Supervised]]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at nodes all the time, and try again at once."""
    for module in (spares, standbys):
        monkeypatch.setattr(module, "CHECK_S", 0.02)
        monkeypatch.setattr(module, "RETRY_S", 0.0)


@pytest.fixture
def supervised(tiny_checkpoint: Path, info: TargetInfo, slow_peers: None) -> Supervise:
    @asynccontextmanager
    async def supervise(n: int = 3, is_started: bool = True, **options: Any) -> AsyncIterator[Supervised]:
        with tempfile.TemporaryDirectory(prefix="st-") as folder:
            pipeline = Supervised(tiny_checkpoint, info, Path(folder), n, **options)
            try:
                if is_started:
                    await pipeline.supervisor.start()
                yield pipeline
            finally:
                GATE.open()
                pipeline.may_load.set()
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                for stage in pipeline.launched:
                    await stage.end()

    return supervise
