"""Attention rows and hidden states of every stage reach the drafter, and their failures stay with one request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployments.router.drafting import InlineDraftClient
from deployments.stage.attention_rows import RowKeeper
from engine.errors import StepFailedError
from engine.loop import Completion, Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.stage.artefacts import MAX_KEPT, AttentionRows, CapturedStep
from engine.stage.stage import Stage
from engine.step import StepResult, WorkResult, encode
from engine.target_model.info import TargetInfo
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from speculators.method import SpeculatorOptions
from speculators.pld_plus.speculator import PldPlusConfig
from speculators.pool import SpeculatorPool
from tests.support.waiting import wait_until_async

OPTIONS = SpeculatorOptions(layer=1, heads=((0, 1), (3, 2), (1, 3), (2, 0))).with_settings(PldPlusConfig(dims=16))
Alone = Callable[[Request], Completion]


def job(number: int, method: str, **params: object) -> Request:
    """A prompt that repeats itself, and a bias towards its tokens, so that lookups find something."""
    prompt = [1, *(3 + (number * 31 + i * i % 7) % 290 for i in range(30))]
    chosen: dict[str, Any] = {"max_tokens": 30, "temperature": 1.0, "seed": number} | params
    return Request(prompt, SamplingParams(**chosen, logit_bias=dict.fromkeys(set(prompt), 12.0)), method, 16)


@pytest.fixture
def alone(tiny_checkpoint: Path) -> Callable[[Request], Completion]:
    """Runs a request in one stage, without a router."""
    options = TargetOptions(str(tiny_checkpoint), kv_bytes=4 << 20, block_size=16, max_model_len=1024)

    def run(one: Request) -> Completion:
        return Engine(LocalTarget.load(options, tiny_checkpoint), SpeculatorPool(OPTIONS)).complete(one)

    return run


@pytest.fixture
def draft_client(info: TargetInfo) -> InlineDraftClient:
    return InlineDraftClient(SpeculatorPool(OPTIONS), info.spec.vocab_size)


@pytest.mark.parametrize(("n_stages", "n_ranks"), [(2, 1), (4, 1), (2, 2)])
async def test_several_stages_and_ranks_draft_like_one(
    n_stages: int, n_ranks: int, serving: Any, alone: Alone, draft_client: InlineDraftClient
) -> None:
    methods = ("pld-plus-a", "pld-plus-h", "pld-plus-a+pld-plus-h")
    async with serving(n_stages, draft_client=draft_client, n_ranks=n_ranks, prefill_chunk=8) as served:
        for method in methods:
            mine, one = await served.answer(job(1, method)), alone(job(1, method))
            assert mine.token_ids == one.token_ids
            assert one.stats.drafted_tokens > 5
            for name in ("drafted_tokens", "accepted_tokens", "step_tokens"):
                assert getattr(mine.events[-1].stats, name) == getattr(one.stats, name), method
        jobs = [job(number, method) for number, method in enumerate((*methods, "pld"))]
        answers = await asyncio.gather(*(served.answer(one) for one in jobs))
        await served.settled()
        assert all(not worker._keeper._kept for worker in served.stages.workers)
    for one, answer in zip(jobs, answers, strict=True):
        assert answer.token_ids == alone(one).token_ids, one.method


class FailsForPoison(Stage):
    """Its attention rows fail for texts that hold the token 299."""

    def captured(self) -> CapturedStep | None:
        found = super().captured()
        return None if found is None else Poisoned(found.step, found.layers, found.works)


class Poisoned(CapturedStep):
    def rows(self, results: Any) -> AttentionRows:
        if any(299 in captured.work.tokens for captured in self.works):
            raise ValueError("poisoned")
        return super().rows(results)


async def test_rows_that_cannot_be_computed_fail_their_request_alone(
    serving: Any, alone: Alone, draft_client: InlineDraftClient
) -> None:
    bad, good = job(1, "pld-plus-a"), job(2, "pld-plus-a", max_tokens=30)
    bad = Request([*bad.prompt, 299], bad.params, bad.method)
    async with serving(3, [Stage, FailsForPoison, Stage], draft_client) as served:
        running = asyncio.create_task(served.answer(good))
        sequences = served.router.lanes[0].scheduler.sequences
        await wait_until_async(lambda: any(len(one.tokens) > one.n_prompt for one in sequences) or running.done())
        with pytest.raises(StepFailedError, match="poisoned"):
            await served.answer(bad)
        assert (await running).token_ids == alone(good).token_ids
        await served.settled()


async def test_a_stage_that_stops_returning_rows_is_a_lost_pipeline_and_the_text_continues(
    serving: Any, alone: Alone, draft_client: InlineDraftClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, n_asked = RowKeeper._answer, 0

    def hang_up(self: RowKeeper, raw: bytes) -> Any:
        nonlocal n_asked
        n_asked += 1
        if n_asked == 7:
            raise EOFError("gone")
        return answer(self, raw)

    monkeypatch.setattr(RowKeeper, "_answer", hang_up)
    one = job(3, "pld-plus-a", max_tokens=40)
    async with serving(2, draft_client=draft_client) as served:
        assert (await served.answer(one)).token_ids == alone(one).token_ids
        state = await served.settled()
    assert state["pipelines_lost"] == 1
    assert n_asked > 8


def test_a_keeper_drops_steps_that_will_never_be_requested() -> None:
    class Nothing(CapturedStep):
        def rows(self, results: Any) -> AttentionRows:
            return {}

    nothing: Any = Nothing.__new__(Nothing)
    keeper = RowKeeper()
    for step in range(2 * MAX_KEPT):
        keeper.keep(step, nothing)
    assert len(keeper._kept) == MAX_KEPT
    last = encode(StepResult(2 * MAX_KEPT - 3, [WorkResult(0)], 0.0))
    assert keeper._answer(last).error == ""
    assert len(keeper._kept) == 2  # the later ones: earlier steps have failed
    assert "not known" in keeper._answer(last).error
    keeper.clear()
    assert len(keeper._kept) == 0
