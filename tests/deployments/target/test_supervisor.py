"""Supervision of stages, with real stages in threads of this process instead of Ray's actors."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from deployments.pipeline.connection import Pipeline
from deployments.pipeline.endpoints import StageEndpoint
from deployments.pipeline.plan import StagePlan
from deployments.stage.actor import Loaded, Pulse
from deployments.stage.worker import StageWorker
from deployments.target.supervisor import StageSupervisor
from engine.errors import ConfigError, TargetLostError
from engine.model.loader import load_shard
from engine.model.ranges import split_layers
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import SequenceStart, Step, StepResult, Work
from engine.target.info import TargetInfo, positions

CPU = torch.device("cpu")


class Held(Stage):
    """A forward that does not come back until the test is over."""

    released = threading.Event()

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        self.released.wait(60)
        return super().forward(step, incoming)


@dataclass(frozen=True)
class Here:
    """Where a stage is; the number of starts stands for the process id."""

    pid: int
    node: str = "n"
    ip: str = "127.0.0.1"
    started: int = 0


class ThreadStage:
    """What ``StageHandle`` offers, for a stage in this process."""

    def __init__(self, number: int, folder: Path, plan: StagePlan, load: Callable[[int], Stage]) -> None:
        self.name = f"stage {number}"
        self.identity: Any = None
        self.endpoint: StageEndpoint | None = None
        self.worker: StageWorker | None = None
        self.is_silent = False
        self.transport = "auto"
        self.refusal = ""  # why there is no plan
        self.is_dead = False
        self._number, self._folder, self._plan, self._load = number, folder, plan, load
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def arrive(self) -> None:
        self.identity = Here(id(self))

    async def plan(self) -> StagePlan:
        if self.refusal:
            raise ConfigError(self.refusal)
        return self._plan

    async def come_up(self, secret: bytes, plan: StagePlan) -> Loaded:
        assert plan is self._plan
        try:
            stage = await asyncio.to_thread(self._load, self._number)
        except OSError as error:
            raise TargetLostError(str(error)) from error
        folder = tempfile.mkdtemp(dir=self._folder)
        self.worker = StageWorker(stage, CPU, f"unix:{folder}/s", secret, self.transport)
        self.endpoint = StageEndpoint("n", self.worker.address)
        await self.arrive()
        return Loaded(0.0, 0)

    async def serve(self, next_address: str | None, rows_address: str) -> None:
        assert self.worker is not None
        await asyncio.to_thread(self.worker.start, next_address, rows_address)

    async def pulse(self, within: float | None = None) -> Pulse:
        if self.is_silent:
            raise TimeoutError
        assert self.worker is not None
        self._check_links()
        since = self.worker.busy_since
        return Pulse(0.0 if since is None else time.monotonic() - since)

    def mark_dead(self, reason: str) -> None:
        if not self._lost.done():
            self._lost.set_result(reason)

    async def lost(self) -> str:
        while not self._lost.done():
            self._check_links()
            await asyncio.wait((self._lost,), timeout=0.05)
        return self._lost.result()

    def _check_links(self) -> None:
        if self.worker is not None and self.worker.fault:
            raise ConfigError(self.worker.fault)

    async def end(self) -> None:
        self.kill()

    def kill(self) -> None:
        self.is_dead = True
        if self.worker is not None:
            self.worker.close()


class Supervised:
    """A group of stages in threads; ``kinds`` says of which class the stage that starts next is, if not ``Stage``."""

    def __init__(self, path: Path, info: TargetInfo, n: int, folder: Path, limit: float) -> None:
        self.kinds: dict[int, list[type[Stage]]] = {}
        self.broken: set[int] = set()  # stages that cannot load
        self.transports: dict[int, str] = {}  # of the stage that starts next
        self.started: list[int] = []
        self.stages: dict[int, ThreadStage] = {}  # the newest of each number
        self._path, self._info, self._folder = path, info, folder
        self._plan = StagePlan(info, tuple(split_layers(info.spec.n_layers, n)))
        self.supervisor = StageSupervisor(self._launch, n, limit)  # type: ignore[arg-type]

    def _launch(self, number: int) -> Any:
        self.started.append(number)
        self.stages[number] = ThreadStage(number, self._folder, self._plan, self._load)
        self.stages[number].transport = self.transports.get(number, "auto")
        return self.stages[number]

    def _load(self, number: int) -> Stage:
        if number in self.broken:
            raise OSError("model.safetensors is gone")
        shard = load_shard(
            self._path, self._plan.ranges[number], dtype=torch.float32, device=CPU, n_positions=positions(self._info)
        )
        kinds = self.kinds.get(number, [])
        return (kinds.pop(0) if kinds else Stage)(shard, self._info.n_blocks, self._info.block_size)

    async def answer(self) -> StepResult:
        """Of one prompt's step, from whichever pipeline there is."""
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


Supervise = Callable[..., Any]


@pytest.fixture
def supervised(tiny_checkpoint: Path, info: TargetInfo) -> Supervise:
    @asynccontextmanager
    async def supervise(n: int = 3, limit: float = 60.0, **kinds: type[Stage]) -> AsyncIterator[Supervised]:
        Held.released.clear()
        with tempfile.TemporaryDirectory(prefix="st-") as folder:
            them = Supervised(tiny_checkpoint, info, n, Path(folder), limit)
            them.kinds = {int(name[1:]): [kind] for name, kind in kinds.items()}
            await them.supervisor.start()
            try:
                yield them
            finally:
                Held.released.set()
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                for stage in them.stages.values():
                    await stage.end()

    return supervise


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("victim", [0, 1, 2])
async def test_only_the_lost_stage_starts_again_and_the_answer_is_the_same(supervised: Supervise, victim: int) -> None:
    async with supervised() as them:
        wanted = (await them.answer()).results
        before, generation = await them.supervisor.endpoints("n"), them.supervisor.state()["generation"]
        await them.stages[victim].end()
        them.stages[victim].mark_dead("killed")
        await until(lambda: len(them.supervisor.replacements) == 1)
        them.supervisor.check()
        assert them.started == [0, 1, 2, victim]
        assert (await them.answer()).results == wanted
        after = await them.supervisor.endpoints("n")
        assert them.supervisor.state()["generation"] == generation + 1
        assert ((after.first != before.first), (after.last != before.last)) == (victim == 0, victim == 2)
        assert dict(them.supervisor.replacements[0].reasons) == {victim: "killed"}
        assert them.supervisor.state()["last_replacement"]["reasons"] == {victim: "killed"}


async def test_a_loop_that_is_stuck_while_pings_are_answered_is_found_by_suspicion(supervised: Supervise) -> None:
    async with supervised(s1=Held) as them:
        waiting = asyncio.create_task(them.answer())
        await until(lambda: them.stages[1].worker.busy_since is not None)
        await them.supervisor.report_hang("too early: nothing may happen")
        assert them.started == [0, 1, 2]
        await asyncio.sleep(1.1)
        await them.supervisor.report_hang("step 7 was not answered")
        answer = await asyncio.wait_for(waiting, 30)
        assert answer.error == ""
        assert them.started == [0, 1, 2, 1]
        assert "in one step" in them.supervisor.replacements[0].reasons[1]


async def test_a_suspected_stage_that_is_silent_is_replaced_and_an_idle_pipeline_is_left_alone(
    supervised: Supervise,
) -> None:
    async with supervised() as them:
        await them.supervisor.report_hang("no reason")
        assert them.supervisor.state()["whole"]
        them.stages[0].is_silent = True
        await them.supervisor.report_hang("step 7 was not answered")
        await until(lambda: len(them.supervisor.replacements) == 1)
        assert them.started == [0, 1, 2, 0]
        assert (await them.answer()).error == ""


async def test_endpoints_wait_for_a_replacement_and_health_does_not_fail_meanwhile(supervised: Supervise) -> None:
    async with supervised() as them:
        old, generation = await them.supervisor.endpoints("n"), them.supervisor.state()["generation"]
        gate, load = threading.Event(), them._load
        them._load = lambda number: (gate.wait(30), load(number))[1]
        await them.stages[2].end()
        them.stages[2].mark_dead("killed")
        await until(lambda: not them.supervisor.state()["whole"])
        asked = asyncio.create_task(them.supervisor.endpoints("n"))
        await asyncio.sleep(0.1)
        assert not asked.done()
        them.supervisor.check()
        gate.set()
        new = await asyncio.wait_for(asked, 30)
        assert (new.last != old.last, them.supervisor.state()["generation"]) == (True, generation + 1)


async def test_a_stage_that_cannot_load_again_fails_the_health_check_with_the_reason(supervised: Supervise) -> None:
    async with supervised() as them:
        them.broken.add(1)
        await them.stages[1].end()
        them.stages[1].mark_dead("killed")
        await until(lambda: len(them.supervisor.replacements) == 1)
        assert them.started == [0, 1, 2, 1, 1]
        with pytest.raises(TargetLostError, match=r"stage 1 could not be replaced: .*model\.safetensors is gone"):
            them.supervisor.check()
        with pytest.raises(TargetLostError, match="could not be replaced"):
            await them.supervisor.endpoints("n")
        assert not any(stage.worker is not None and stage.worker.is_alive for stage in them.stages.values())


async def test_a_replacement_that_takes_too_long_fails_the_health_check(supervised: Supervise) -> None:
    async with supervised(limit=0.3) as them:
        gate, load = threading.Event(), them._load
        them._load = lambda number: (gate.wait(30), load(number))[1]
        them.stages[0].mark_dead("killed")
        await until(lambda: len(them.supervisor.replacements) == 1)
        with pytest.raises(TargetLostError, match=r"it took longer than 0\.3 s"):
            them.supervisor.check()
        gate.set()


async def test_two_lost_stages_are_replaced_together(supervised: Supervise) -> None:
    async with supervised() as them:
        wanted = (await them.answer()).results
        for number in (0, 2):
            await them.stages[number].end()
            them.stages[number].mark_dead("killed")
        await until(lambda: bool(them.supervisor.replacements) and them.supervisor.state()["whole"])
        assert sorted(them.started) == [0, 0, 1, 2, 2]
        assert (await them.answer()).results == wanted


async def test_a_start_that_fails_leaves_no_stage_running(
    supervised: Supervise, tiny_checkpoint: Path, info: TargetInfo, tmp_path: Path
) -> None:
    them = Supervised(tiny_checkpoint, info, 2, tmp_path, 60.0)
    them.broken.add(1)
    with pytest.raises(TargetLostError, match=r"model\.safetensors is gone"):
        await them.supervisor.start()
    assert not any(stage.worker is not None and stage.worker.is_alive for stage in them.stages.values())


async def test_a_target_that_cannot_be_planned_fails_the_start_with_the_reason_and_leaves_no_stage(
    tiny_checkpoint: Path, info: TargetInfo, tmp_path: Path
) -> None:
    them = Supervised(tiny_checkpoint, info, 3, tmp_path, 60.0)
    them.stages[0].refusal = "layer_split is 1,2"
    with pytest.raises(ConfigError, match="layer_split is 1,2"):
        await them.supervisor.start()
    assert [stage.is_dead for stage in them.stages.values()] == [True, True, True]
    assert all(stage.worker is None for stage in them.stages.values())


@pytest.mark.parametrize("odd", [0, 1, 2])
async def test_stages_that_share_no_link_fail_the_start_with_the_reason(
    odd: int, tiny_checkpoint: Path, info: TargetInfo, tmp_path: Path
) -> None:
    them = Supervised(tiny_checkpoint, info, 3, tmp_path, 60.0)
    them.stages[odd].transport = "gloo"
    with pytest.raises(ConfigError, match=r"transport offers .* on one stage and .* on the next"):
        await asyncio.wait_for(them.supervisor.start(), 30)
    assert not any(stage.worker is not None and stage.worker.is_alive for stage in them.stages.values())


async def test_a_replacement_that_shares_no_link_gives_the_pipeline_up_with_the_reason(supervised: Supervise) -> None:
    async with supervised() as them:
        them.transports[1] = "gloo"
        await them.stages[1].end()
        them.stages[1].mark_dead("killed")
        await until(lambda: len(them.supervisor.replacements) == 1)
        waiting = asyncio.create_task(them.answer())  # a connection shows it
        await until(lambda: len(them.supervisor.replacements) == 2)
        waiting.cancel()
        assert them.started == [0, 1, 2, 1]
        with pytest.raises(TargetLostError, match="transport offers socket on one stage and gloo on the next"):
            them.supervisor.check()


async def test_a_router_out_of_a_unix_sockets_reach_hears_which_flag_is_wrong(supervised: Supervise) -> None:
    async with supervised(2) as them:
        with pytest.raises(ConfigError, match=r"--transport\) is unix, but the router is on another node"):
            await them.supervisor.endpoints("another")
