"""``--simulate``: what follows from a profile, and which profiles and answers are refused."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.commands.serve import config_from
from app.composition.pipeline import router_options, target_options
from app.composition.speculation import speculator_options
from app.config.serve import ServeConfig
from app.inputs.prompts import encode_chat
from app.inputs.tokenizers import load_tokenizer
from engine.errors import ConfigError
from engine.simulated.profile import PROFILES, PipelineProfile
from speculators.auto.config import AutoConfig


def configured(**flags: Any) -> ServeConfig:
    return config_from(argparse.Namespace(**flags))


def test_stages_and_sources_of_auto_follow_from_the_profile_unless_they_are_given(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    assert configured(simulate="70b-h100x8").stages == 8
    assert configured(simulate="70b-h100x8", stages="2").stages == 2
    assert target_options(configured(stages="2")).simulation is None
    plain = configured(simulate="flat10")
    simulation = target_options(plain).simulation
    assert simulation is not None
    assert simulation.profile is PROFILES["flat10"]
    model = str(tiny_checkpoint)
    served = [configured(model=model, simulate=profile) for profile in ("flat10", None, "70b-h100x2")]
    files = {router_options(config).cost_file for config in served}
    assert len(files - {""}) == 3  # times of simulated steps are not kept for a real target
    assert speculator_options(plain).settings_of(AutoConfig).sources == ("suffix",)  # only methods that read text alone
    given = configured(simulate="flat10", auto='{"sources": ["pld"], "loss": 0.02}')
    chosen = speculator_options(given).settings_of(AutoConfig)
    assert (chosen.sources, chosen.loss) == (("pld",), 0.02)
    (tmp_path / "own.json").write_text('{"base_s": 0.02, "stages": 3, "link_bytes_per_s": 1.25e9}')
    own = configured(simulate=str(tmp_path / "own.json"))
    simulation = target_options(own).simulation
    assert own.stages == 3
    assert simulation is not None
    assert simulation.profile == PipelineProfile(0.02, 3, link_bytes_per_s=1.25e9)


def test_recorded_answers_become_tokens_of_the_model(tiny_checkpoint: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs.jsonl"
    logs.write_text(json.dumps({"prompt": "Why?", "answer": "Because it is."}) + "\n")
    config = configured(model=str(tiny_checkpoint), simulate="flat10", simulate_answers=str(logs))
    simulation = target_options(config).simulation
    assert simulation is not None
    [(prompt, answer)] = msgspec.msgpack.decode(simulation.recordings)
    tokenizer = load_tokenizer(tiny_checkpoint)
    assert prompt == encode_chat(tokenizer, [{"role": "user", "content": "Why?"}])
    assert tokenizer.decode(answer[:-1]) == "Because it is."
    assert answer[-1] == tokenizer.eos_token_id
    logs.write_text('{"prompt": "Why?"}\n')
    with pytest.raises(ConfigError, match="--simulate-answers"):
        target_options(config)


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ("{", r"--simulate .*own\.json: .*truncated"),
        ("[]", r"--simulate .*own\.json: Expected `object`, got `array`"),
        ('{"base_s": 1, "speed": 2}', r"--simulate .*own\.json.*no field 'speed'"),
        ('{"base_s": 0.02}', "^transport is gloo, but has no effect: stages is 1"),
        (None, r"--simulate is .*own\.json.*; it must be a profile \(70b-h100x2, .*flat10\) or a JSON file"),
    ],
)
def test_a_wrong_profile_is_refused_by_name(profile: str | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    if profile is not None:
        file.write_text(profile)
    with pytest.raises(ConfigError, match=says):
        configured(simulate=str(file), transport="gloo")
