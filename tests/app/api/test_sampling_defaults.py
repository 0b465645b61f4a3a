"""Sampling fields that a request leaves out have the values of the model's generation_config.json, as in vLLM."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoModelForCausalLM

from app.api.application import create_app
from app.api.edge import Edge
from app.api.http import Api
from app.api.service import ServiceSettings
from app.composition.sampling import sampling_defaults
from app.config.errors import config_of
from app.doctor.model import check_fit
from app.serving.preflight import check_model
from engine.errors import ConfigError, UnsupportedModelError
from engine.model.checkpoint_files import GENERATION_CONFIG as FILE
from engine.sampling.params import SamplingParams
from tests.app.conftest import ScriptedBackend, client_of
from tests.support.broken_checkpoints import POINTER

RECOMMENDED = {"temperature": 0.25, "top_p": 0.75, "top_k": 20, "min_p": 0.125, "repetition_penalty": 1.5}
OPENAIS = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
USER = {"role": "user", "content": "hello"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
}


def fields_of(params: SamplingParams) -> dict[str, float]:
    return {name: getattr(params, name) for name in OPENAIS}


@pytest.fixture
def api(backend: ScriptedBackend) -> Api:
    return Api(backend, backend.tokenizer, ServiceSettings(sampling=dict(RECOMMENDED)))


@pytest.mark.parametrize("path", BODIES)
async def test_a_request_has_the_models_values_for_fields_that_it_leaves_out(
    path: str, api: Api, backend: ScriptedBackend
) -> None:
    async def post(**fields: Any) -> tuple[dict[str, float], httpx.Response]:
        answer = await client.post(path, json=BODIES[path] | {"model": "tiny", **fields})
        assert answer.status_code == 200, answer.text
        return fields_of(backend.seen[-1].params), answer

    async with client_of(create_app(api)) as client:
        params, answer = await post()
        assert params == RECOMMENDED
        if path == "/v1/responses":
            assert {name: answer.json()[name] for name in ("temperature", "top_p")} == {
                "temperature": 0.25,
                "top_p": 0.75,
            }
        assert (await post(**dict.fromkeys(RECOMMENDED)))[0] == RECOMMENDED, "a null is an absent field"
        assert (await post(**OPENAIS))[0] == OPENAIS, "a field that is given counts, also with OpenAI's value"
        assert (await post(top_p=0.5))[0] == RECOMMENDED | {"top_p": 0.5}


async def test_handles_have_the_models_values_too(api: Api, backend: ScriptedBackend) -> None:
    edge = Edge(api, create_app(api))
    await edge.generate({"messages": [USER]})
    assert fields_of(backend.seen[-1].params) == RECOMMENDED
    await edge.generate({"prompt": "hello", "temperature": 0})
    assert fields_of(backend.seen[-1].params) == RECOMMENDED | {"temperature": 0}


def defaults_of(folder: Path, written: object, **given: Any) -> dict[str, float]:
    """Return the defaults of a model whose generation_config.json has ``written``."""
    (folder / FILE).write_text(json.dumps(written))
    return sampling_defaults(config_of({"model": str(folder), **given}))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({}, {}),
        ({"eos_token_id": 2, "top_h": 0.5, "num_beams": 4, "presence_penalty": 1}, {}),
        (RECOMMENDED, RECOMMENDED),
        (dict.fromkeys(RECOMMENDED), {}),
        ({"temperature": 1, "top_k": -1}, {"temperature": 1, "top_k": -1}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.6}),
        ({"do_sample": False}, {}),
        ({"max_new_tokens": 77, "max_length": 9}, {"max_tokens": 77}),
    ],
)
def test_the_fields_of_vllm_are_read(written: dict[str, Any], expected: dict[str, float], tmp_path: Path) -> None:
    assert defaults_of(tmp_path, written) == expected
    assert defaults_of(tmp_path, written, generation_config="none") == {}
    assert "max_tokens" not in defaults_of(tmp_path, written, default_max_tokens=5)


def test_a_model_without_the_file_has_openais_defaults(tmp_path: Path) -> None:
    assert sampling_defaults(config_of({"model": str(tmp_path)})) == {}


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({"temperature": -1}, "temperature is -1; it must be at least 0.0"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"top_p": 0}, "top_p is 0; it must be greater than 0.0"),
        ({"top_k": 1.5}, "top_k is 1.5; it must be an integer"),
        ({"repetition_penalty": [1]}, r"repetition_penalty is \[1\]; it must be a number"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; it must be at least 1"),
    ],
)
def test_a_value_that_no_request_may_have_is_refused_with_file_and_key(
    written: dict[str, Any], says: str, tmp_path: Path
) -> None:
    expected = rf"^\S*/generation_config.json: {says}; start with --generation-config none to ignore the file$"
    with pytest.raises(ConfigError, match=expected):
        defaults_of(tmp_path, written)
    assert defaults_of(tmp_path, written, generation_config="none") == {}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", POINTER])
def test_serve_ignores_a_file_that_is_no_json_as_transformers_does(
    content: bytes, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    (folder / FILE).write_bytes(content)
    assert AutoModelForCausalLM.from_pretrained(folder).generation_config.temperature is None
    check_model(config_of({"model": str(folder)}), is_local=True)
    assert sampling_defaults(config_of({"model": str(folder)})) == {}


@pytest.mark.parametrize("text", ["[1]", "null"])
def test_a_file_with_json_that_is_no_object_is_refused_with_its_name(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(UnsupportedModelError, match=rf"^{tmp_path / FILE} (is|holds)"):
        sampling_defaults(config_of({"model": str(tmp_path)}))
    assert sampling_defaults(config_of({"model": str(tmp_path), "generation_config": "none"})) == {}


def test_serve_and_doctor_refuse_such_a_value_before_anything_starts(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    (folder / FILE).write_text(json.dumps({"eos_token_id": 2, "top_p": 1.5}))
    with pytest.raises(ConfigError, match=r"top_p is 1.5; it must be at most 1.0") as refused:
        check_model(config_of({"model": str(folder)}), is_local=True)
    checked = check_fit(config_of({"model": str(folder), "kv_gib": 0.01}), None, 0.9)
    found = [one for one in checked if one.status == "problem"]
    assert [(one.name, one.says) for one in found] == [("model", str(refused.value))]


def test_the_edge_of_an_application_gets_the_values(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing Serve warns
        from app.builder import build_app
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    (folder / FILE).write_text(json.dumps({"eos_token_id": 2, "max_new_tokens": 33} | RECOMMENDED))
    for given, expected in (
        ({}, (33, RECOMMENDED)),
        ({"default_max_tokens": 44}, (44, RECOMMENDED)),
        ({"generation_config": "none"}, (1024, {})),
    ):
        application: Any = build_app({"model": str(folder), "method": "pld", "kv_gib": 0.01, **given})
        settings = application._bound_deployment.init_args[2].settings
        assert (settings.default_max_tokens, settings.sampling) == expected
