"""What a trained drafter adds to a target: blocks, memory and work of the last stage, and which one it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.drafter.checkpoint.write import write_drafter
from engine.drafter.settings import DrafterSettings
from engine.errors import ConfigError
from engine.model.loader import load_spec
from engine.simulated.profile import PipelineProfile, Simulation
from engine.target.drafter import describe_drafter, read_checkpoint
from engine.target.loading import describe_target, load_parts, memory_of_stages, stage_ranges
from engine.target.options import TargetOptions
from tests.support.served_drafters import drafter_spec, random_checkpoint
from tests.support.tiny_models import saved_model


def options(folder: Path, kind: str, stages: int = 2) -> TargetOptions:
    """The tiny Llama, and a drafter that is saved for it."""
    path = saved_model("llama")
    spec = load_spec(path)
    write_drafter(folder, random_checkpoint(drafter_spec(kind, spec)), spec)
    return TargetOptions(
        str(path), stages=stages, kv_bytes=1 << 20, block_size=16, drafter=DrafterSettings(str(folder), depth=3)
    )


def test_the_cache_is_shared_with_the_drafter(tmp_path: Path) -> None:
    wanted = options(tmp_path, "p-eagle")
    path = Path(wanted.model)
    alone, both = describe_target(replace(wanted, drafter=None), path), describe_target(wanted, path)
    per_token = 2 * 8 * 2 * 4  # keys and values of two heads, fp32, a layer
    assert alone.n_blocks == wanted.kv_bytes // (16 * 4 * per_token)
    assert both.n_blocks == wanted.kv_bytes // (16 * 5 * per_token)
    assert alone.difference(both) == f"n_blocks {both.n_blocks} instead of {alone.n_blocks}, another drafter"
    held = memory_of_stages(wanted, path, both, stage_ranges(wanted, path, both))
    assert sum(stage.kv for stage in held) == both.n_blocks * 16 * 5 * per_token


@pytest.mark.parametrize(
    ("kind", "depths", "heads", "embeds"), [("medusa", 1, 0, 0), ("eagle", 3, 1, 1), ("p-eagle", 1, 0, 0)]
)
def test_a_draft_multiplies_by_the_drafter_and_the_head_it_uses(
    kind: str, depths: int, heads: int, embeds: int, tmp_path: Path
) -> None:
    wanted = options(tmp_path, kind)
    assert wanted.drafter is not None
    spec = load_spec(Path(wanted.model))
    checkpoint = read_checkpoint(wanted.drafter, spec)
    found = describe_drafter(checkpoint, wanted.drafter, torch.float32)
    own, matrix = sum(tensor.numel() for tensor in checkpoint.tensors.values()), spec.vocab_size * spec.hidden_size
    assert found.work == depths * (own + heads * matrix)
    assert found.weight_bytes == 4 * (own + embeds * matrix)
    assert str(found).startswith(f"{kind} (")


def test_layers_make_room_for_a_heavy_drafter(tmp_path: Path) -> None:
    wanted = options(tmp_path, "eagle")
    path, settings = Path(wanted.model), wanted.drafter
    assert settings is not None
    light = describe_target(replace(wanted, drafter=None), path)
    heavy = describe_target(replace(wanted, drafter=replace(settings, depth=6)), path)
    assert [len(one) for one in stage_ranges(replace(wanted, drafter=None), path, light)] == [2, 2]
    assert [len(one) for one in stage_ranges(wanted, path, heavy)] == [3, 1]


def test_a_stage_refuses_another_drafter_than_the_plans(tmp_path: Path) -> None:
    wanted = options(tmp_path / "first", "medusa")
    path = Path(wanted.model)
    info = describe_target(wanted, path)
    spec = load_spec(path)
    changed = random_checkpoint(drafter_spec("medusa", spec), seed=1)
    write_drafter(tmp_path / "first", changed, spec)
    with pytest.raises(ConfigError, match="is not the one with which the pipeline began"):
        load_parts(wanted, path, stage_ranges(wanted, path, info), info)
    with pytest.raises(ConfigError, match="a simulated target has no states"):
        describe_target(replace(wanted, simulation=Simulation(PipelineProfile(1e-3), b"")), path)
