"""A replacement stage loads the files that its pipeline began with, or none."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from deployments.stage.actor import StageActor
from engine.errors import ConfigError, UnsupportedModelError
from engine.target_model.options import TargetOptions

SINGLE = "model.safetensors"


@pytest.fixture
def copy(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "model"))


def stage(path: Path) -> StageActor:
    return StageActor(TargetOptions(str(path), kv_bytes=4 << 20, block_size=16), 1, "unix")


def test_a_stage_refuses_weights_or_a_configuration_that_changed_since_the_plan(copy: Path) -> None:
    plan = stage(copy).plan()
    (copy / "other.safetensors").write_bytes((copy / SINGLE).read_bytes())  # a file that one node alone has
    assert "other.safetensors" in stage(copy).plan().files
    stage(copy).load(plan, 0)
    tensors = load_file(copy / SINGLE)
    name = "model.layers.1.self_attn.q_proj.weight"
    save_file(tensors | {name: -tensors[name]}, copy / SINGLE, {"format": "pt"})
    with pytest.raises(ConfigError, match=rf"{SINGLE} is not the file .* with which the pipeline began"):
        stage(copy).load(plan, 0)
    save_file(tensors, copy / SINGLE, {"format": "pt"})
    stage(copy).load(replace(plan, files=stage(copy).plan().files), 0)
    (copy / "config.json").write_text((copy / "config.json").read_text() + "\n")
    with pytest.raises(ConfigError, match=r"config\.json is not the file"):
        stage(copy).load(plan, 0)


def test_pipelines_with_different_weights_describe_different_targets(copy: Path) -> None:
    before = stage(copy).plan().info
    tensors = load_file(copy / SINGLE)
    save_file({name: tensor * 1.5 for name, tensor in tensors.items()}, copy / SINGLE, {"format": "pt"})
    after = stage(copy).plan().info
    assert before.spec == after.spec
    assert before.difference(after).startswith("weights ")


def test_a_standby_process_that_cannot_read_the_checkpoint_fails_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnsupportedModelError, match="model_type is missing"):
        stage(tmp_path).prepare()
