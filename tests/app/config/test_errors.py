"""A wrong configuration is told in a sentence: field or flag, value, what would be right; by keys as Ray gives them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from app.cli import main
from app.config.errors import config_of
from app.config.fields import GROUPS
from app.config.serve import ServeConfig
from engine.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"stages": "0"}, "stages is 0; it must be at least 1"),
        ({"stages": "two"}, "stages is two; it must be an integer"),
        ({"max_nodes": 99999}, "max_nodes is 99999; it must be at most 4096"),
        ({"kv_gib": 0}, "kv_gib is 0; it must be above 0"),
        ({"kv_gib": ""}, "kv_gib is ''; it must be above 0 (GiB), or auto"),
        ({"prefix_cache": "perhaps"}, "prefix_cache is perhaps; it must be true or false"),
        ({"dtype": "int8"}, "dtype is int8; it must be float32, bfloat16 or float16"),
        ({"device": "tpu"}, "device is tpu; it must be auto, cpu, cuda or cuda:N"),
        ({"pld": []}, "pld is []; it must be a JSON object"),
        ({"modle": "demo"}, "modle is unknown; model is meant?"),
        ({"methods": "pld,sufix"}, "methods: unknown method 'sufix'; available: "),
        ({"methods": " , "}, "methods names no method; leave it out to allow all"),
        ({"device": "cuda"}, "stage_gpus is 0, but device is cuda: a stage needs a GPU"),
    ],
    ids=str,
)
def test_a_wrong_field_is_told_in_a_sentence(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        config_of(given)
    assert str(error.value).startswith(says)


BY_RAY = """
import sys
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as build
from app.builder import build_app
from engine.errors import ConfigError

print(type(build(build_app, {"stages": "2", "retrieval": "none", "kv_gib": 0.1})).__name__)
for wrong in {"max_nodes": "many"}, {"modle": "demo"}, {"model": "/nowhere"}:
    try:
        build(build_app, wrong)
    except ConfigError as error:
        print(error)
"""


def test_ray_hands_over_the_keys_of_a_serve_config_file_as_they_are() -> None:
    done = subprocess.run([sys.executable, "-c", BY_RAY], capture_output=True, text=True, timeout=400)
    assert done.stdout.splitlines() == [
        "Application",
        "max_nodes is many; it must be an integer",
        "modle is unknown; model is meant?",
        "model '/nowhere' is neither a directory nor a hub id, as in Qwen/Qwen3-0.6B",
    ], done.stderr


def test_a_server_of_gpus_says_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--device", "cuda"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("spectra: --stage-gpus is 0, but --device is cuda")


def test_every_field_is_shown_in_a_group_of_the_help() -> None:
    assert sorted(name for group in GROUPS for name in group.model_fields) == sorted(ServeConfig.model_fields)
