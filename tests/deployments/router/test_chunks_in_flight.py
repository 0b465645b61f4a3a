"""Long prompts in small chunks through real stages: several of one prompt in flight, the same texts, no leaks."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deployments.options import RouterOptions
from deployments.router.draft_client import InlineDraftClient
from engine.errors import StepFailedError
from engine.loop import Completion
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import Step
from speculators.pld_plus.speculator import PldPlusConfig
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions

METHODS = ("autoregressive", "pld", "spectra-core", "pld+spectra-core", "pld-plus-h", "pld-plus-a", "token-recycling")
CHUNK = 16
POISON = 311
Offline = Callable[[Request], Completion]


class Gated(Stage):
    """Takes steps up only while its gate is open."""

    gate = threading.Event()

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        assert self.gate.wait(120)
        return super().forward(step, incoming)


class FailsHalfway(Gated):
    """Raises when it has done its part of a chunk with ``POISON`` in it."""

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        activations = super().forward(step, incoming)
        if any(POISON in work.tokens and work.tree is None for work in step.work):
            raise MemoryError("poisoned")
        return activations


class FailsAtOnce(Gated):
    """Raises before it has looked at a chunk with ``POISON`` in it."""

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        assert self.gate.wait(120)
        if any(POISON in work.tokens and work.tree is None for work in step.work):
            raise MemoryError("poisoned")
        return super().forward(step, incoming)


@pytest.fixture(autouse=True)
def gate() -> Iterator[threading.Event]:
    """Open, unless a test closes it."""
    Gated.gate.set()
    yield Gated.gate
    Gated.gate.set()


def long_job(number: int, method: str = "autoregressive", n: int = 150, **params: Any) -> Request:
    chance = random.Random(number)
    text = [1, *(chance.randrange(3, 300) for _ in range(n // 2))]
    return Request((text * 2)[:n], SamplingParams(max_tokens=20, seed=number, **params), method, max_nodes=16)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("n_stages", [1, 2, 4])
async def test_long_prompts_have_the_same_text_through_any_number_of_stages(
    n_stages: int, serving: Any, offline: Offline
) -> None:
    options = SpeculatorOptions(pld_plus=PldPlusConfig(layer=1, dims=16, heads=((1, 1), (2, 0), (1, 3))))
    draft_client = InlineDraftClient(SpeculatorPool(options), 320)
    jobs = [long_job(i, method, 60 + 30 * i, temperature=0.8 * (i % 2)) for i, method in enumerate(METHODS)]
    async with serving(n_stages, draft_client=draft_client, prefill_chunk=CHUNK) as served:
        for job in jobs:  # one after the other: each has the pipeline for itself
            assert (await served.answer(job)).token_ids == offline(job).token_ids
        answers = await asyncio.gather(*(served.answer(job) for job in jobs))
        assert [answer.token_ids for answer in answers] == [offline(job).token_ids for job in jobs]
        await served.settled()


@pytest.mark.parametrize("n_stages", [1, 2, 4])
async def test_a_prompt_alone_has_a_chunk_for_every_stage_in_flight(
    n_stages: int, serving: Any, offline: Offline, gate: threading.Event
) -> None:
    job = long_job(1)
    async with serving(n_stages, [Gated] * n_stages, prefill_chunk=CHUNK) as served:
        gate.clear()
        answer = asyncio.create_task(served.answer(job))
        lane = served.router.lanes[0]
        await until(lambda: lane.n_in_flight == n_stages)
        assert [sequence.in_flight for sequence in lane.scheduler.running] == [n_stages]
        gate.set()
        assert (await answer).token_ids == offline(job).token_ids
        await served.settled()


@pytest.mark.parametrize("n_stages", [2, 4])
async def test_a_prompt_that_is_given_up_keeps_its_blocks_until_its_last_chunk_is_answered(
    n_stages: int, serving: Any, offline: Offline, gate: threading.Event
) -> None:
    other = long_job(2, "pld")
    async with serving(n_stages, [Gated] * n_stages, prefill_chunk=CHUNK) as served:
        gate.clear()
        gone = asyncio.create_task(served.answer(long_job(1)))
        lane = served.router.lanes[0]
        await until(lambda: lane.n_in_flight == n_stages)
        staying = asyncio.create_task(served.answer(other))
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        n_blocks = served.info.n_blocks
        assert lane.scheduler.blocks.n_free == n_blocks - 10  # of 16 tokens, for 150
        gate.set()
        assert (await staying).token_ids == offline(other).token_ids
        await served.settled()


@pytest.mark.parametrize("kind", [FailsAtOnce, FailsHalfway])
@pytest.mark.parametrize("poisoned", [3, 70, 140])
@pytest.mark.parametrize(("n_stages", "place"), [(1, 0), (2, 0), (2, 1), (4, 1), (4, 3)])
async def test_a_chunk_that_fails_takes_its_prompt_with_it_and_no_other(
    n_stages: int,
    place: int,
    poisoned: int,
    kind: type[Stage],
    serving: Any,
    offline: Offline,
    gate: threading.Event,
) -> None:
    job, others = long_job(1), [long_job(i, METHODS[i % 4], 20 * i) for i in range(2, 5)]
    job.prompt[poisoned] = POISON
    kinds = [kind if i == place else Gated for i in range(n_stages)]
    async with serving(n_stages, kinds, prefill_chunk=CHUNK) as served:
        gate.clear()
        failing = asyncio.create_task(served.answer(job))
        lane = served.router.lanes[0]
        await until(lambda: lane.n_in_flight == n_stages)
        answers = [asyncio.create_task(served.answer(other)) for other in others]
        gate.set()
        with pytest.raises(StepFailedError, match="poisoned"):
            await failing
        assert [(await answer).token_ids for answer in answers] == [offline(other).token_ids for other in others]
        assert (await served.settled())["pipelines_lost"] == 0


@pytest.mark.parametrize("n_stages", [2, 4])
async def test_a_pipeline_lost_in_the_middle_of_a_prompt_costs_no_token(
    n_stages: int, serving: Any, offline: Offline, gate: threading.Event
) -> None:
    job = long_job(1, "pld")
    async with serving(n_stages, [Gated] * n_stages, prefill_chunk=CHUNK) as served:
        gate.clear()
        answer = asyncio.create_task(served.answer(job))
        await until(lambda: served.router.lanes[0].n_in_flight == n_stages)
        served.stages.workers[-1].close()
        await until(lambda: not served.router.lanes[0].is_up)
        gate.set()
        served.replace()
        assert (await answer).token_ids == offline(job).token_ids
        await served.settled()


async def test_a_prompt_moves_to_another_lane_in_the_middle(
    serving: Any, offline: Offline, gate: threading.Event
) -> None:
    job = long_job(1, "pld")
    options = RouterOptions("tiny", failover=0.0)
    async with serving(2, [Gated] * 2, n_lanes=2, prefill_chunk=CHUNK, options=options) as served:
        await until(lambda: all(lane.is_up for lane in served.router.lanes))
        gate.clear()
        answer = asyncio.create_task(served.answer(job))
        await until(lambda: max(lane.n_in_flight for lane in served.router.lanes) == 2)
        busy = next(i for i, lane in enumerate(served.router.lanes) if lane.n_in_flight)
        served.pipelines[busy].close()
        await until(lambda: served.router.lanes[1 - busy].n_in_flight == 2)
        gate.set()
        assert (await answer).token_ids == offline(job).token_ids
        served.replace(lane=busy)
        await served.settled()
