"""``--simulate``: what follows from it, and what is refused."""

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
from app.demo.paths import DEMO_TARGET
from app.inputs.prompts import encode_chat
from app.inputs.tokenizers import load_tokenizer
from engine.errors import ConfigError
from engine.simulated.profile import PROFILES, PipelineProfile


def _config(**flags: Any) -> ServeConfig:
    return config_from(argparse.Namespace(**flags))


def test_the_stages_come_from_the_profile_unless_they_are_given() -> None:
    assert _config(simulate="70b-h100x8").stages == 8
    assert _config(simulate="70b-h100x8", stages="2").stages == 2
    simulation = target_options(_config(simulate="flat10")).simulation
    assert simulation is not None
    assert simulation.profile is PROFILES["flat10"]
    assert target_options(_config(stages="2")).simulation is None


def test_auto_chooses_from_methods_of_text_alone() -> None:
    assert speculator_options(_config(simulate="flat10")).auto.sources == ("suffix",)
    chosen = speculator_options(_config(simulate="flat10", auto='{"sources": ["pld"], "longest_pause": 2}')).auto
    assert (chosen.sources, chosen.longest_pause) == (("pld",), 2)


def test_step_times_of_a_simulated_target_are_not_kept_for_a_real_one() -> None:
    files = {router_options(_config(simulate=name)).cost_file for name in (None, "flat10", "70b-h100x2")}
    assert "" not in files
    assert len(files) == 3


def test_a_profile_of_ones_own_is_a_json_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"base_s": 0.02, "stages": 3, "link_bytes_per_s": 1.25e9}')
    config = _config(simulate=str(file))
    simulation = target_options(config).simulation
    assert config.stages == 3
    assert simulation is not None
    assert simulation.profile == PipelineProfile(0.02, 3, link_bytes_per_s=1.25e9)


def test_recorded_answers_become_tokens_of_the_model(tmp_path: Path) -> None:
    logs = tmp_path / "logs.jsonl"
    logs.write_text(json.dumps({"prompt": "Why?", "answer": "Because it is."}) + "\n")
    simulation = target_options(_config(simulate="flat10", simulate_answers=str(logs))).simulation
    assert simulation is not None
    [(prompt, answer)] = msgspec.msgpack.decode(simulation.recordings)
    tokenizer = load_tokenizer(DEMO_TARGET)
    assert prompt == encode_chat(tokenizer, [{"role": "user", "content": "Why?"}])
    assert tokenizer.decode(answer[:-1]) == "Because it is."
    assert answer[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"simulate": "flat11"}, r"--simulate is 'flat11': neither a profile \(70b-h100x2, .*flat10\) nor a JSON file"),
        ({"simulate_answers": "a.jsonl"}, "--simulate-answers goes with simulate"),
        ({"simulate": "flat10", "device": "cuda", "stage_gpus": 1}, "simulate needs no device, but --device is cuda"),
    ],
)
def test_what_makes_no_sense_is_refused(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        _config(**flags)


def test_a_field_that_does_not_fit_the_profile_is_refused_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "one-stage.json"
    file.write_text('{"base_s": 0.02}')
    with pytest.raises(ConfigError, match=r"^transport is gloo, but has no effect: stages is 1"):
        _config(simulate=str(file), transport="gloo")


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "cannot be read"), ("[]", "no JSON object"), ('{"base_s": 1, "speed": 2}', "no field 'speed'")],
)
def test_a_profile_file_is_named_in_what_is_wrong_with_it(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mine.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"--simulate .*mine\.json.*{said}"):
        _config(simulate=str(file))


def test_logs_without_an_answer_are_refused_by_flag(tmp_path: Path) -> None:
    logs = tmp_path / "logs.jsonl"
    logs.write_text('{"prompt": "Why?"}\n')
    with pytest.raises(ConfigError, match="--simulate-answers"):
        target_options(_config(simulate="flat10", simulate_answers=str(logs)))
