"""Stages of a pipeline report their numerics, and all run the weakest of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from deployments.pipeline.stage_reports import StageRoom
from deployments.stage.actor import StageActor
from deployments.stage.planning import plan_stages
from engine.errors import ConfigError
from engine.target_model.options import EXACT, FAST, LAYERS, Resolution, TargetOptions
from tests.support.tiny_models import saved_model


def options(**more: object) -> TargetOptions:
    made = TargetOptions(str(saved_model("llama")), stages=2, kv_bytes=1 << 20)
    return replace(made, **more)  # type: ignore[arg-type]


def test_the_weakest_numerics_of_the_stages_are_those_of_the_pipeline(caplog: pytest.LogCaptureFixture) -> None:
    own = options(resolution=Resolution(EXACT, seconds=1.9))
    rooms = [StageRoom(1 << 30, Resolution(EXACT, seconds=1.9)), StageRoom(1 << 30, Resolution(FAST, "it is old"))]
    alike = plan_stages(own, saved_model("llama"), rooms[:1] * 2)
    assert (alike.numerics, alike.info.identity.numbers) == (EXACT, "float32+exact")
    assert not caplog.messages
    mixed = plan_stages(own, saved_model("llama"), rooms)
    assert (mixed.numerics, mixed.info.identity.numbers) == (FAST, "float32+fast")
    found = "they found: exact (self-test passed in 1.9 s); fast, because it is old"
    assert caplog.messages == [f"numerics of all stages: fast; {found}"]


def test_a_stage_loads_with_the_numerics_of_the_plan_or_refuses() -> None:
    actor = StageActor(options(), torch.get_num_threads(), "auto")
    room = actor.room()
    assert room.numerics == Resolution(LAYERS)
    plan = actor.plan([room, room])
    assert plan.numerics == LAYERS
    with pytest.raises(ConfigError, match="the pipeline began with numerics exact, but here they are"):
        actor.load(replace(plan, numerics=EXACT), 1)
    assert actor.load(plan, 1).n_bytes > 0
