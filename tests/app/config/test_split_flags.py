"""Flags about splits and int8: what cannot be right is told before anything loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.composition.pipeline import target_options
from app.config.serve import ServeConfig
from app.speculation.step_costs import way
from engine.target.options import GIB


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"layer_split": "most"}, "layer_split is 'most'; it must be auto, even, measured"),
        ({"layer_split": "2,2", "stages": 3}, "layer_split is 2,2; it must give each of the 3 stages"),
        ({"stage_memory_gib": "much"}, "stage_memory_gib is 'much'; it must be GiB above 0"),
        ({"stage_memory_gib": 0}, "stage_memory_gib is 0"),
        ({"stage_memory_gib": "80,40", "stages": 3}, "stage_memory_gib is 80,40; .* one for each of the 3 stages"),
        ({"quantization": "int4"}, "quantization"),
    ],
)
def test_what_cannot_be_right_is_named(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ServeConfig(**given)


def test_flags_reach_the_target() -> None:
    target = target_options(ServeConfig(stages=2, layer_split="3,5", stage_memory_gib="2,1.5", quantization="int8"))
    assert (target.split, target.stage_memory, target.quantization) == ("3,5", (2 * GIB, 3 * GIB // 2), "int8")
    assert target.cost_folder
    assert target_options(ServeConfig(stage_memory_gib=3)).stage_memory == (3 * GIB,)
    assert target_options(ServeConfig(device="cuda", stage_gpus=1, numerics="exact")).numerics == "exact"
    plain = target_options(ServeConfig())
    assert (plain.split, plain.stage_memory, plain.quantization, plain.numerics) == ("auto", (), None, "fast")


def test_int8_weights_have_step_times_of_their_own() -> None:
    assert (
        len(
            {
                way(None, None),
                way(None, "int8"),
                way("bfloat16", None),
                way("bfloat16", "int8"),
                way(None, None, "exact"),
            }
        )
        == 5
    )


def generated(model: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> list[int]:
    command = ["generate", "--model", str(model), "--prompt", "The quick", "--raw", "--max-new-tokens", "12", "--json"]
    assert main([*command, "--method", "pld", *flags]) == 0
    tokens: list[int] = json.loads(capsys.readouterr().out)["token_ids"]
    return tokens


def test_generate_writes_the_same_whatever_the_split(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = generated(tiny_checkpoint, capsys)
    for split in ("even", "measured", "1,3"):
        assert generated(tiny_checkpoint, capsys, "--stages", "2", "--layer-split", split) == plain
    int8 = generated(tiny_checkpoint, capsys, "--quantization", "int8")
    assert generated(tiny_checkpoint, capsys, "--quantization", "int8", "--stages", "2", "--layer-split", "1,3") == int8


def test_generate_tells_what_does_not_fit(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", "--model", str(tiny_checkpoint), "--prompt", "x", "--stages", "2"]
    assert main([*command, "--layer-split", "1,2"]) == 2
    assert "layer_split is 1,2: 2 stages with 3 layers" in capsys.readouterr().err
    assert main([*command, "--stage-memory-gib", "0.001"]) == 2
    assert "stage_memory_gib is 0.001 for stage" in capsys.readouterr().err
