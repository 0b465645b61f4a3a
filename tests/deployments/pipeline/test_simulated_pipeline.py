"""A router on simulated stages: known texts, also when a stage is lost in the middle of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.model.shard import ModelShard
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.simulated.answers import Answers, pack_recordings
from engine.simulated.profile import PipelineProfile
from engine.simulated.stage import SimulatedStage

PROFILE = PipelineProfile(0.002, flat_sequences=2, prompt_row_s=1e-5, verify_s=1e-4, link_latency_s=1e-4)
RECORDED = [1, 5, 9, 33], [7, 8, 7, 8, 7, 8, 9, 10, 11, 7, 8, 9, 10, 11, 12, 2]


def _stage(shard: ModelShard, n_blocks: int, block_size: int) -> SimulatedStage:
    """In the place of a real stage, whose layers it ignores."""
    answers = Answers(320, (2,), pack_recordings([RECORDED])) if shard.range.is_last else None
    return SimulatedStage(PROFILE, answers, n_blocks, block_size)


def _known(job: Request) -> list[int]:
    answer = Answers(320, (2,), pack_recordings([RECORDED])).to(job.prompt, job.params)
    return answer.part(0, min(job.params.max_tokens, 16 if job.prompt == RECORDED[0] else job.params.max_tokens))


@pytest.mark.parametrize("method", ["autoregressive", "pld", "suffix"])
@pytest.mark.parametrize("n_stages", [1, 3])
async def test_streams_are_the_known_texts(serving: Any, make_job: Any, method: str, n_stages: int) -> None:
    recorded = Request(RECORDED[0], SamplingParams(max_tokens=50, stop_ids=(2,)), method)
    jobs = [recorded, *(make_job(i, method, temperature=0.7 * (i % 2)) for i in range(5))]
    async with serving(n_stages=n_stages, kinds=[_stage] * n_stages, max_sequences=4) as served:
        answers = await asyncio.gather(*(served.answer(job) for job in jobs))
        assert [answer.token_ids for answer in answers] == [_known(job) for job in jobs]
        await served.settled()


async def test_streams_go_on_with_the_same_text_when_a_stage_is_lost(serving: Any, make_job: Any) -> None:
    jobs = [make_job(i, "pld", max_tokens=80) for i in range(4)]
    async with serving(n_stages=2, kinds=[_stage] * 2, max_sequences=4) as served:
        answers = asyncio.gather(*(served.answer(job) for job in jobs))
        while served.stages.n_sequences < len(jobs):
            await asyncio.sleep(0.001)
        served.stages.workers[1].close()
        served.replace([_stage] * 2)
        assert [answer.token_ids for answer in await answers] == [_known(job) for job in jobs]
        assert (await served.router.state())["pipelines_lost"] == 1
        await served.settled()
