"""``--device auto``: a GPU where torch sees one, in this process or in a stage, and else the CPU."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch

from app.composition.pipeline import target_options
from app.config.serve import ServeConfig
from app.inputs import devices
from app.inputs.devices import device_named
from app.offline.flags import add_model


@pytest.mark.parametrize(
    ("files", "sees", "wanted"),
    [((), True, "cpu"), (("nvidia0",), True, "cuda"), (("nvidia0",), False, "cpu"), (("nvidiactl",), True, "cpu")],
)
def test_a_command_takes_a_gpu_that_torch_sees(
    files: tuple[str, ...], sees: bool, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "DEVICES", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: sees)
    for name in files:
        (tmp_path / name).touch()
    parser = argparse.ArgumentParser()
    add_model(parser)
    assert parser.parse_args([]).device == parser.parse_args(["--device", "auto"]).device == wanted
    for given in ("cpu", "cuda", "cuda:1", "tpu"):  # checked later, by a sentence
        assert device_named(given) == given


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, "cpu"),
        ({"stage_gpus": 1}, "cuda"),
        ({"stage_gpus": 0.5, "device": "auto"}, "cuda"),
        ({"stage_gpus": 1, "device": "cpu"}, "cpu"),
        ({"stage_gpus": 1, "device": "cuda:1"}, "cuda:1"),
        ({"stage_gpus": 1, "simulate": "flat10"}, "cpu"),
    ],
)
def test_a_stage_runs_on_the_gpu_that_it_reserves(given: dict[str, object], wanted: str) -> None:
    config = ServeConfig.model_validate(given)
    assert config.stage_device == target_options(config).device == wanted


def test_a_small_model_runs_on_the_gpu_that_its_actor_reserves() -> None:
    on_gpus = ServeConfig(stage_gpus=1, draft_model="demo")
    assert (on_gpus.stage_device, on_gpus.draft_model_settings["device"]) == ("cuda", "cpu")
    beside = ServeConfig(stage_gpus=1, draft_model="demo", speculator_actors=1, speculator_gpus=0.5)
    assert beside.draft_model_settings["device"] == "cuda"
    named = ServeConfig(draft_model="demo", draft_model_options={"device": "auto"})
    assert named.draft_model_settings["device"] == "cpu"


def test_a_small_model_has_the_target_s_numerics_where_it_is_on_a_gpu() -> None:
    given = {"stage_gpus": 1, "numerics": "exact", "draft_model": "demo"}
    on_cpu = ServeConfig.model_validate(given)
    assert on_cpu.draft_model_settings["numerics"] == "fast"
    beside = ServeConfig.model_validate(given | {"speculator_actors": 1, "speculator_gpus": 0.5})
    assert beside.draft_model_settings["numerics"] == "exact"
    named = ServeConfig.model_validate(
        given | {"speculator_actors": 1, "speculator_gpus": 0.5, "draft_model_options": {"numerics": "fast"}}
    )
    assert named.draft_model_settings["numerics"] == "fast"


def test_what_needs_a_gpu_is_refused_where_stages_have_none() -> None:
    for given, said in (
        ({"transport": "nccl", "stages": 2}, "transport is nccl, but device is cpu"),
        ({"device": "cuda"}, "stage_gpus is 0, but device is cuda: a stage needs a GPU"),
        ({"numerics": "exact"}, "numerics is exact, but has no effect: device is cpu"),
    ):
        with pytest.raises(ValueError, match=said):
            ServeConfig.model_validate(given)
    ServeConfig(numerics="exact", stage_gpus=1)
