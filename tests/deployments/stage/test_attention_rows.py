"""Artefacts of heads and layers on any stage reach the speculator, whatever happens on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.router.draft_client import InlineDraftClient
from deployments.stage.attention_rows import MAX_KEPT, RowKeeper
from deployments.transport.channel import Channel
from engine.errors import StepFailedError
from engine.loop import Engine
from engine.protocol import Branch, Outcome, RequestView, Speculator
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.stage.artefacts import AttentionRows, CapturedStep
from engine.stage.stage import Stage
from engine.step import StepResult, WorkResult, encode
from engine.target.info import TargetInfo
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from speculators.pld_plus.speculator import PldPlusConfig
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions, create

OPTIONS = SpeculatorOptions(pld_plus=PldPlusConfig(layer=1, dims=16, heads=((0, 1), (3, 2), (1, 3), (2, 0))))
METHODS = ("pld-plus-a", "pld-plus-h", "pld-plus-a+pld-plus-h")


class Recording:
    """Writes down what another speculator is told and what it drafts."""

    def __init__(self, inner: Speculator) -> None:
        self.inner = inner
        self.name, self.needs = inner.name, inner.needs
        self.drafted: list[tuple[list[int], list[list[int]]]] = []
        self.attention: list[np.ndarray[Any, Any]] = []

    def begin(self, request: RequestView) -> None:
        self.inner.begin(request)

    def propose(self, request: RequestView, budget: int) -> list[Branch]:
        branches = self.inner.propose(request, budget)
        self.drafted.append((request.context.view.tolist(), [list(branch.tokens) for branch in branches]))
        return branches

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        if outcome.artefacts is not None:
            self.attention += [] if outcome.artefacts.attention is None else [outcome.artefacts.attention]
        self.inner.observe(request, outcome)

    def end(self, request: RequestView) -> None:
        self.inner.end(request)


def recorded(method: str) -> tuple[Recording, SpeculatorPool]:
    recording = Recording(create(method, OPTIONS))
    return recording, SpeculatorPool(OPTIONS, {"recorded": lambda _: recording})


def job(number: int, method: str, **params: object) -> Request:
    """A prompt that repeats itself, and a bias towards its tokens, so that there is something to look up."""
    prompt = [1, *(3 + (number * 31 + i * i % 7) % 290 for i in range(30))]
    chosen: dict[str, Any] = {"max_tokens": 30, "temperature": 1.0, "seed": number} | params
    return Request(prompt, SamplingParams(**chosen, logit_bias=dict.fromkeys(set(prompt), 12.0)), method, 16)


@pytest.fixture
def local(tiny_checkpoint: Path) -> Callable[[Request, SpeculatorPool], list[int]]:
    """What the offline engine writes in one stage."""
    options = TargetOptions(str(tiny_checkpoint), kv_bytes=4 << 20, block_size=16, max_model_len=1024)

    def run(one: Request, pool: SpeculatorPool) -> list[int]:
        return Engine(LocalTarget.load(options, tiny_checkpoint), pool).complete(one).token_ids

    return run


@pytest.mark.parametrize("method", METHODS)
async def test_stages_behind_sockets_give_the_drafts_of_one_stage(
    method: str, serving: Any, local: Any, info: TargetInfo
) -> None:
    alone, pool = recorded(method)
    text = local(job(1, "recorded"), pool)
    assert sum(bool(found) for _, found in alone.drafted) > 5
    for n_stages in (1, 2, 3, 4):
        recording, pool = recorded(method)
        async with serving(
            n_stages, draft_client=InlineDraftClient(pool, info.spec.vocab_size), prefill_chunk=8
        ) as served:
            assert (await served.answer(job(1, "recorded"))).token_ids == text
            await served.settled()
            assert all(not worker._keeper._kept for worker in served.stages.workers)
        assert recording.drafted == alone.drafted, n_stages
        assert (len(alone.attention) > 5) == ("pld-plus-a" in method)
        for mine, wanted in zip(recording.attention, alone.attention, strict=True):
            assert mine.shape == wanted.shape
            assert np.allclose(mine, wanted, atol=1e-6)


async def test_requests_in_flight_together_get_their_own_rows(serving: Any, local: Any, info: TargetInfo) -> None:
    methods = (*METHODS, "pld", "autoregressive")
    jobs = [job(number, methods[number % 5], max_tokens=20 + number) for number in range(10)]
    pool = SpeculatorPool(OPTIONS)
    async with serving(3, draft_client=InlineDraftClient(pool, info.spec.vocab_size), prefill_chunk=16) as served:
        answers = await asyncio.gather(*(served.answer(one) for one in jobs))
        await served.settled()
        assert all(not worker._keeper._kept for worker in served.stages.workers)
    for one, answer in zip(jobs, answers, strict=True):
        assert answer.token_ids == local(Request(one.prompt, one.params), SpeculatorPool()), one.method
        if one.method.startswith("pld-plus"):
            assert answer.events[-1].stats.drafted_tokens > 0


class CannotTell(Stage):
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
    serving: Any, local: Any, info: TargetInfo
) -> None:
    bad, good = job(1, "pld-plus-a"), job(2, "pld-plus-a", max_tokens=60)
    bad = Request([*bad.prompt, 299], bad.params, bad.method)
    draft_client = InlineDraftClient(SpeculatorPool(OPTIONS), info.spec.vocab_size)
    async with serving(3, [Stage, CannotTell, Stage], draft_client) as served:
        running = asyncio.create_task(served.answer(good))
        await asyncio.sleep(0.05)
        with pytest.raises(StepFailedError, match="poisoned"):
            await served.answer(bad)
        assert (await running).token_ids == local(Request(good.prompt, good.params), SpeculatorPool())
        await served.settled()


async def test_a_stage_that_stops_answering_is_a_lost_pipeline_and_the_text_goes_on(
    serving: Any, local: Any, info: TargetInfo, monkeypatch: pytest.MonkeyPatch
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
    draft_client = InlineDraftClient(SpeculatorPool(OPTIONS), info.spec.vocab_size)
    async with serving(2, draft_client=draft_client) as served:
        assert (await served.answer(one)).token_ids == local(Request(one.prompt, one.params), SpeculatorPool())
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
    assert len(keeper._kept) == 2  # the later ones; those before it have failed
    assert "not known" in keeper._answer(last).error
    keeper.clear()
    assert len(keeper._kept) == 0


async def test_what_is_no_question_ends_the_connection(serving: Any, info: TargetInfo) -> None:
    async with serving(2) as served:
        worker = served.stages.workers[0]
        channel = Channel.connect(worker.address, served.stages.endpoints.secret, "rows")
        channel.send(b"\xff nonsense")
        with pytest.raises(EOFError):
            await asyncio.to_thread(channel.receive)
        channel.close()
