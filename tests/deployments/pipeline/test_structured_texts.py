"""Texts under grammars through a router and its stages: masks live on the last stage, and survive its loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployments.router.draft_client import InlineDraftClient
from engine.events import ABORT
from engine.grammar import compiler
from engine.loop import Completion
from engine.request import Request
from engine.target.info import TargetInfo
from speculators.grammar import GrammarConfig
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions
from tests.support.grammars import PERSON, of_lark, of_regex, of_schema
from tests.support.slow_stage import Slow

METHODS = ("autoregressive", "grammar", "pld", "suffix+grammar", "auto")
GRAMMARS = (of_schema(PERSON), of_schema(PERSON, whitespace=False), of_regex("(fox|dog)(, (fox|dog)){2,5}"))
MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


@pytest.fixture
def draft_client(tiny_checkpoint: Path, info: TargetInfo) -> InlineDraftClient:
    config = GrammarConfig(str(tiny_checkpoint), None, (2,), info.spec.vocab_size)
    return InlineDraftClient(SpeculatorPool(SpeculatorOptions(grammar=config)), info.spec.vocab_size)


def jobs_of(make_job: MakeJob, **sampling: Any) -> list[Request]:
    return [
        make_job(number, METHODS[number % len(METHODS)], grammar=GRAMMARS[number % 3], max_tokens=50, **sampling)
        for number in range(12)
    ]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.95}], ids=["greedy", "seeded"])
@pytest.mark.parametrize("n_stages", [1, 2, 4])
async def test_a_masked_text_is_the_same_on_any_number_of_stages(
    n_stages: int,
    sampling: dict[str, Any],
    serving: Any,
    make_job: MakeJob,
    offline: Offline,
    draft_client: InlineDraftClient,
) -> None:
    jobs = jobs_of(make_job, **sampling)
    async with serving(n_stages, draft_client=draft_client, prefill_chunk=8) as served:
        answers = await asyncio.gather(*(served.answer(job) for job in jobs))
        for job, answer in zip(jobs, answers, strict=True):
            assert answer.token_ids == offline(job).token_ids, job.method
        await served.settled()


async def test_texts_go_on_behind_a_lost_pipeline_and_a_lost_router(
    serving: Any, make_job: MakeJob, offline: Offline, draft_client: InlineDraftClient
) -> None:
    jobs = jobs_of(make_job, temperature=0.8)
    whole = [offline(job).token_ids for job in jobs]
    async with serving(2, kinds=[Slow, Slow], draft_client=draft_client) as served:
        running = [
            asyncio.create_task(served.answer(job, emitted=text[:number], resumed=number > 0))
            for number, (job, text) in enumerate(zip(jobs, whole, strict=True))
        ]
        await asyncio.sleep(0.2)
        served.replace()
        for number, (task, text) in enumerate(zip(running, whole, strict=True)):
            assert (await task).token_ids == text[number:]
        await served.settled()


async def test_a_grammar_that_takes_too_much_work_ends_its_own_text_alone(
    serving: Any, make_job: MakeJob, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "MASK_ITEMS", 120)
    bomb = make_job(1, grammar=of_lark('start: start start | "a" | "b"'), max_tokens=100, min_tokens=90)
    others = jobs_of(make_job)[:3:2]
    async with serving(2) as served:
        ended, *answers = await asyncio.gather(*(served.answer(job) for job in (bomb, *others)))
        assert ended.events[-1].finish_reason == ABORT
        assert ended.events[-1].error
        for job, answer in zip(others, answers, strict=True):
            assert answer.token_ids == offline(job).token_ids
        await served.settled()
