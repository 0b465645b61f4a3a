"""Pipelines that cannot start say why, and leave no stage behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.errors import ConfigError, TargetLostError
from engine.target.info import TargetInfo
from tests.deployments.target.conftest import Supervise, Supervised


async def test_a_start_that_fails_leaves_no_stage_running(
    supervised: Supervise, tiny_checkpoint: Path, info: TargetInfo, tmp_path: Path
) -> None:
    pipeline = Supervised(tiny_checkpoint, info, 2, tmp_path, 60.0)
    pipeline.broken.add(1)
    with pytest.raises(TargetLostError, match=r"model\.safetensors is gone"):
        await pipeline.supervisor.start()
    assert not any(stage.worker is not None and stage.worker.is_alive for stage in pipeline.stages.values())


async def test_a_target_that_cannot_be_planned_fails_the_start_with_the_reason_and_leaves_no_stage(
    tiny_checkpoint: Path, info: TargetInfo, tmp_path: Path
) -> None:
    pipeline = Supervised(tiny_checkpoint, info, 3, tmp_path, 60.0)
    pipeline.stages[0].refusal = "layer_split is 1,2"
    with pytest.raises(ConfigError, match="layer_split is 1,2"):
        await pipeline.supervisor.start()
    assert [stage.is_dead for stage in pipeline.stages.values()] == [True, True, True]
    assert all(stage.worker is None for stage in pipeline.stages.values())


@pytest.mark.parametrize("odd", [0, 1, 2])
async def test_stages_that_share_no_link_fail_the_start_with_the_reason(
    odd: int, tiny_checkpoint: Path, info: TargetInfo, tmp_path: Path
) -> None:
    pipeline = Supervised(tiny_checkpoint, info, 3, tmp_path, 60.0)
    pipeline.stages[odd].transport = "gloo"
    with pytest.raises(ConfigError, match=r"transport offers .* on one stage and .* on the next"):
        await asyncio.wait_for(pipeline.supervisor.start(), 30)
    assert not any(stage.worker is not None and stage.worker.is_alive for stage in pipeline.stages.values())
