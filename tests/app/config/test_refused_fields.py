"""A wrong configuration is refused in one sentence: key or flag, value, what is allowed; passwords are not shown."""

from __future__ import annotations

import argparse
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.cli import parser
from app.commands.serve import config_from
from app.config.errors import REMOVED, config_of
from app.config.flags import OBJECTS, config_of_flags, flag
from app.config.serve import GROUPS, ServeConfig
from engine.errors import ConfigError

FIELD = re.compile(rf"\b({'|'.join(ServeConfig.model_fields)})\b(?= (is|names|has no)\b|:)")
SIMULATED = {"simulate": "flat10"}
TWO = {"replicas": 2}
RANKS = {"tensor_parallel": 2}
ON_GPUS = {"draft_model": "small", "device": "cuda", "stage_gpus": 0.5}
SMALL_ON_GPU = "draft_model on cuda needs speculator_actors of at least 1 and speculator_gpus above 0"


def drafter(**options: Any) -> dict[str, Any]:
    return {"drafter": "d", "drafter_options": options}


def edge(**resources: Any) -> dict[str, Any]:
    return {"edge_resources": resources}


REFUSED = [
    ({"stages": "two"}, "stages is two; it must be an integer"),
    ({"max_nodes": 99999}, "max_nodes is 99999; it must be at most 4096"),
    ({"kv_gib": 0}, "kv_gib is 0; it must be above 0"),
    ({"kv_gib": ""}, "kv_gib is ''; it must be above 0 (GiB), or auto"),
    ({"prefix_cache": "perhaps"}, "prefix_cache is perhaps; it must be true or false"),
    ({"dtype": "int8"}, "dtype is int8; it must be float32, bfloat16 or float16"),
    ({"tool_parser": "qwen"}, "tool_parser is qwen; it must be auto, none, hermes, llama3 or mistral"),
    ({"device": "tpu"}, "device is tpu; it must be auto, cpu, cuda or cuda:N"),
    ({"pld": []}, "pld is []; it must be a JSON object"),
    ({"methods": "pld,sufix"}, "methods: unknown method 'sufix'; available: "),
    ({"methods": " , "}, "methods names no method; leave it out to allow all"),
    ({"name": ["ok", "x" * 257]}, "name is 'xxxxxxxxxxxxxxxxxxxx'..; a model's name has at most 256 characters"),
    ({"retrieval_namespace": ".."}, "retrieval_namespace is ..; it must be 1 to 128 letters"),
    ({"live": ".a"}, "live names '.a'; a namespace has 1 to 128 letters, digits, '.', '_' and '-', no '.' first"),
    # fields that must fit each other
    ({"device": "cuda"}, "stage_gpus is 0, but device is cuda: a stage needs a GPU"),
    ({"transport": "nccl", "stages": 2}, "transport is nccl, but device is cpu"),
    (SIMULATED | {"device": "cuda", "stage_gpus": 1}, "device is cuda, but simulate is set"),
    ({"simulate_answers": "a.jsonl"}, "simulate_answers is given, but simulate is not"),
    ({"api_keys": "k", "tenant_header": "X-Tenant"}, "tenant_header is X-Tenant, but api_keys is set"),
    ({"api_keys": "k", "trust_clients": "true"}, "trust_clients is true, but api_keys is set"),
    ({"tenant_header": "X Tenant"}, "tenant_header is X Tenant; it must be 1 to 64 letters"),
    (
        {"cors_origins": "https://a.example,b.example"},
        "cors_origins is https://a.example,b.example; each must be an or",
    ),
    (TWO | {"max_replicas": 3}, "replicas is 2, but max_replicas is 3"),
    ({"min_replicas": 4, "max_replicas": 3}, "min_replicas is 4; it must be at most max_replicas"),
    # fields without effect
    (SIMULATED | {"layer_split": "even"}, "layer_split is even, but has no effect: simulate is set"),
    ({"numerics": "exact"}, "numerics is exact, but has no effect: device is cpu"),
    ({"numerics": "odd"}, "numerics is odd; it must be auto, exact, fast or layers"),
    ({"affinity": "prefix"}, "affinity is prefix, but has no effect: replicas is 1"),
    ({"answers_per_tenant": 0, "answers_mib": 2.0}, "answers_mib is 2.0, but has no effect: answers_per_tenant is 0"),
    ({"failover": 1.0}, "failover is 1.0, but has no effect: replicas is 1"),
    ({"transport": "gloo"}, "transport is gloo, but has no effect: stages is 1"),
    ({"min_replicas": 2}, "min_replicas is 2, but has no effect: max_replicas is not given"),
    ({"scale_down_delay": 9.0}, "scale_down_delay is 9.0, but has no effect: max_replicas is not given"),
    # splits
    ({"layer_split": "most"}, "layer_split is 'most'; it must be auto, even, measured"),
    ({"layer_split": "2,2", "stages": 3}, "layer_split is 2,2; it must give each of the 3 stages"),
    ({"stage_memory_gib": "much"}, "stage_memory_gib is 'much'; it must be GiB above 0"),
    ({"stage_memory_gib": "80,40", "stages": 3}, "stage_memory_gib is 80,40"),
    # ranks
    ({"tensor_parallel": 65}, "tensor_parallel is 65; it must be at most 64"),
    (RANKS | SIMULATED, "tensor_parallel is 2, but simulate is set"),
    (RANKS | {"standby_stages": 1}, "standby_stages is 1, but tensor_parallel is 2: a spare rank"),
    (RANKS | {"stage_gpus": 0.5}, "stage_gpus is 0.5, but tensor_parallel is 2: each rank needs a GPU of its own"),
    (RANKS | {"stage_gpus": 1, "device": "cuda:1"}, "device is cuda:1, but tensor_parallel is 2"),
    # drafters
    ({"drafter_options": {"depth": 3}, "model": "org/other"}, "drafter_options is given, but drafter is not"),
    (drafter(layers="first"), "drafter_options: layers is 'first'; it must be a list"),
    (drafter(width=3), "drafter_options: width is unknown; it has beam, depth, layers"),
    (drafter(beam=33), "drafter_options: beam is 33; it must be at most 32"),
    (drafter(depth=True), "drafter_options: depth is True; it must be an integer"),
    ({"draft_model_options": {"path": "x"}}, "draft_model_options: path is unknown; it has "),
    ({"draft_model_options": {"draft_tokens": 0}}, "draft_model_options: draft_tokens is 0; it must be at least 1"),
    (ON_GPUS, SMALL_ON_GPU),
    (ON_GPUS | {"speculator_gpus": 0.2}, SMALL_ON_GPU),
    # resources that Ray would not grant
    (edge(edge="much"), "edge_resources is much; it must be a number"),
    (edge(edge=0), "edge_resources names edge with 0; it must be 0.0001 to 1000"),
    (edge(edge=0.00015), "edge_resources names edge with 0.00015; it must be 0.0001 to 1000, in steps"),
    (edge(edge=float("nan")), "edge_resources names edge with nan; it must be"),
    (edge(CPU=1), "edge_resources names 'CPU'; a custom resource's name has"),
]


@pytest.mark.parametrize(("given", "says"), REFUSED, ids=str)
def test_a_wrong_field_is_refused_by_key_and_by_flag(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as by_key:
        config_of(given)
    assert str(by_key.value).startswith(says)
    flags = {name: json.dumps(value) if name in OBJECTS else value for name, value in given.items()}
    with pytest.raises(ConfigError) as by_flag:
        config_from(argparse.Namespace(**flags))
    assert str(by_flag.value).startswith(FIELD.sub(lambda field: flag(field[0]), says))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"api_keys": "/nowhere/keys"}, "/nowhere/keys cannot be read"),
        ({"edge_resources": "edge"}, "--edge-resources is 'edge', which is not a JSON object"),
        ({"auto": "margin=0.1"}, "--auto is 'margin=0.1', which is not a JSON object"),
        ({"auto": "[1]"}, "--auto is [1]; it must be a JSON object"),
        ({"retrieval": "redis:/user:secret@host"}, "--retrieval: '//' is missing"),
        ({"retrieval": "nowhere"}, "--retrieval nowhere: no such"),
    ],
)
def test_a_wrong_flag_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config_from(argparse.Namespace(**given))
    assert str(refused.value).startswith(says)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        SIMULATED | {"layer_split": "auto", "stage_memory_gib": None, "quantization": None, "numerics": "fast"},
        {"layer_split": "even", "stage_memory_gib": "80", "quantization": "int8"},
        {"affinity": "none", "transport": "tcp"},
        {"transport": "gloo", "stages": "2"},
        {"numerics": "exact", "stage_gpus": 1},
        TWO | {"affinity": "prefix", "failover": "0"},
        RANKS | {"stages": 2, "stage_gpus": 1, "stage_placement": "strict_spread"},
        {"tensor_parallel": 1, "standby_stages": 1} | SIMULATED,
    ],
)
def test_a_field_that_acts_or_asks_for_nothing_is_accepted(given: dict[str, Any]) -> None:
    assert ServeConfig(**given).model_fields_set == set(given)


@pytest.mark.parametrize(
    "wrong", [{"device": "cuda"}, {"live": "a b"}, {"draft_model_options": {"path": "x"}}, {"max_nodes": -1}]
)
def test_no_error_of_a_configuration_shows_a_password(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        ServeConfig(retrieval="redis://user:secret@host/0", **wrong)
    assert "secret" not in str(refused.value)


def test_ray_passes_the_keys_of_a_serve_config_file_unchanged(tiny_checkpoint: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing Serve warns
        from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as build

        from app.builder import build_app

        args = {"model": str(tiny_checkpoint), "stages": "2", "kv_gib": 0.1}
        assert type(build(build_app, args)).__name__ == "Application"
        for wrong, says in (
            ({"max_nodes": "many"}, "max_nodes is many; it must be an integer"),
            ({"modle": "tiny"}, "modle is unknown; did you mean model?"),
            ({"model": "/nowhere"}, "model '/nowhere' is neither a directory nor"),
        ):
            with pytest.raises(ConfigError) as refused:
                build(build_app, wrong)
            assert str(refused.value).startswith(says)


def test_every_field_is_in_one_group_of_the_help() -> None:
    assert sorted(name for group in GROUPS for name in group.model_fields) == sorted(ServeConfig.model_fields)


def test_a_field_of_an_earlier_version_is_refused_with_what_replaces_it() -> None:
    assert not REMOVED.keys() & ServeConfig.model_fields.keys()
    for field in REMOVED:
        with pytest.raises(ConfigError, match=f"^{field} no longer exists: "):
            config_of({field: "1"})
    for command, says in (
        ("serve --prefill-chunk 9", "^--prefill-chunk no longer exists: --max-stall limits .*, --max-step-rows "),
        ("generate --prompt a --draft-tokens 9", "^--draft-tokens no longer exists: use --draft-model-options "),
    ):
        with pytest.raises(ConfigError, match=says):
            config_of_flags(parser().parse_args(command.split()))


def test_a_flag_overrides_its_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECTRA_MAX_NODES", "7")
    monkeypatch.setenv("SPECTRA_AUTO", '{"loss": 0.02}')
    assert config_of_flags(parser().parse_args(["serve"])).max_nodes == 7
    assert config_of_flags(parser().parse_args(["serve", "--max-nodes", "9"])).max_nodes == 9
    assert config_of_flags(parser().parse_args(["serve"])).section("auto").given == {"loss": 0.02}
    monkeypatch.setenv("SPECTRA_MAX_NODES", "")
    assert config_of_flags(parser().parse_args(["serve"])).max_nodes is None
    assert ServeConfig().max_nodes is None  # in a Serve config file only keys count
    monkeypatch.setenv("SPECTRA_MAX_NODES", "x")
    with pytest.raises(ConfigError, match="SPECTRA_MAX_NODES is x; it must be an integer"):
        config_of_flags(parser().parse_args(["serve"]))


def test_the_short_help_has_the_flags_that_people_set(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for word in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            parser().parse_args(["serve", word])
        shown[word] = re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    assert len(shown["--help"]) <= 46
    assert {"--model", "--tensor-parallel", "--api-keys"} <= set(shown["--help"]) < set(shown["--help-all"])
    assert {flag(field) for field in ServeConfig.model_fields} <= set(shown["--help-all"])
