"""Trained drafters on the last stage of real pipelines: taps of earlier stages arrive, drafts come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from deployments.router.draft_client import InlineDraftClient
from engine.drafter.checkpoint.checkpoint import DrafterCheckpoint
from engine.loop import Completion
from engine.model.shard import ModelShard
from engine.request import Request
from engine.stage.stage import Stage
from engine.target.drafter import describe_drafter, drafter_part
from engine.target.info import TargetInfo
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions
from tests.support.served_drafters import SETTINGS, drafter_spec, random_checkpoint

N_TOKENS = 24


def stage(checkpoint: DrafterCheckpoint, info: TargetInfo, shard: ModelShard, n_blocks: int, block_size: int) -> Stage:
    part = drafter_part(checkpoint, SETTINGS, shard, info)
    return Stage(shard, n_blocks, block_size, drafter=part)


@pytest.mark.parametrize("transport", ["auto", "gloo"])
@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("kind", ["medusa", "p-eagle"])
async def test_drafts_come_back_through_a_pipeline(
    kind: str,
    verification: str,
    transport: str,
    serving: Any,
    info: TargetInfo,
    make_job: Callable[..., Request],
    offline: Callable[[Request], Completion],
) -> None:
    checkpoint = random_checkpoint(drafter_spec(kind, info.spec))
    method = checkpoint.spec.method
    drafted = replace(info, drafter=describe_drafter(checkpoint, SETTINGS, torch.float32))
    sampling: dict[str, Any] = {"temperature": 0.8, "verification": verification}
    client = InlineDraftClient(SpeculatorPool(SpeculatorOptions(trained=method)), info.spec.vocab_size)
    kinds: Any = [partial(stage, checkpoint, drafted)] * 3
    jobs = [make_job(number, method, max_tokens=N_TOKENS) for number in range(5)]
    drawn = [make_job(number, method, max_tokens=N_TOKENS, **sampling) for number in range(3)]
    async with serving(3, kinds, client, target=drafted, transport=transport, prefill_chunk=8) as served:
        answers = await asyncio.gather(*(served.answer(job) for job in (*jobs, *drawn)))
        await served.settled()
    for job, answer in zip([*jobs, *drawn], answers, strict=True):
        assert answer.events[-1].stats.drafted_tokens > 0
        if job.params.is_greedy or verification == "coupled":
            assert answer.token_ids == offline(job).token_ids
