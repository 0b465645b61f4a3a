"""Trained drafters on the last stage of real pipelines: they get the taps of earlier stages and return drafts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from deployments.router.drafting import InlineDraftClient
from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.model.shard import ModelShard
from engine.stage.stage import Stage
from engine.target_model.drafter import describe_drafter, drafter_part
from engine.target_model.info import TargetInfo
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool
from tests.deployments.conftest import Serving, job_of
from tests.support.served_drafters import SETTINGS, drafter_spec, random_checkpoint

N_TOKENS = 24


def stage(checkpoint: DrafterCheckpoint, info: TargetInfo, shard: ModelShard, n_blocks: int, block_size: int) -> Stage:
    part = drafter_part(checkpoint, SETTINGS, shard, info)
    return Stage(shard, n_blocks, block_size, drafter=part)


@pytest.mark.parametrize(
    ("kind", "verification", "transport"),
    [
        ("medusa", "rejection", "auto"),
        ("p-eagle", "coupled", "auto"),
        pytest.param("medusa", "coupled", "gloo", marks=pytest.mark.matrix),
        pytest.param("p-eagle", "rejection", "gloo", marks=pytest.mark.matrix),
    ],
)
async def test_drafts_of_the_last_stage_change_no_text(
    kind: str, verification: str, transport: str, serving: Serving, info: TargetInfo
) -> None:
    checkpoint = random_checkpoint(drafter_spec(kind, info.spec))
    method = checkpoint.spec.method
    drafted = replace(info, drafter=describe_drafter(checkpoint, SETTINGS, torch.float32))
    sampling: dict[str, Any] = {"temperature": 0.8, "verification": verification}
    client = InlineDraftClient(SpeculatorPool(SpeculatorOptions(trained=method)), info.spec.vocab_size)
    kinds: Any = [partial(stage, checkpoint, drafted)] * 3
    async with serving(3, kinds, client, target=drafted, transport=transport, prefill_chunk=8) as served:
        answers = [served.begin(job_of(number, method, max_tokens=N_TOKENS)) for number in range(5)]
        drawn = [served.begin(job_of(number, method, max_tokens=N_TOKENS, **sampling)) for number in range(3)]
        await served.compare([*answers, *(drawn if verification == "coupled" else ())])
        assert all([(await answer).stats.drafted_tokens > 0 for answer in (*answers, *drawn)])
