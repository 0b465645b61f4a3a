"""Every command says the same sentence of a checkpoint that it cannot run, before anything starts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from app.config.serve import ServeConfig
from app.inputs.tokenizers import load_tokenizer
from app.serving.preflight import check_model
from engine.errors import SpectraError
from engine.events import NOT_FINITE
from tests.app.api.engine_backend import over_engine
from tests.support.broken_checkpoints import BrokenFolder, broken_folders, write_json, write_tensors
from tests.support.spectra_command import run_cli

PLAIN = ("--method", "autoregressive")
FOLDERS = {one.name: one for one in broken_folders()}
NAN = BrokenFolder(
    "NaN", "llama", lambda folder: write_tensors(folder, model__norm__weight=torch.full((32,), torch.nan))
)
LARGE = {"lm_head__weight": torch.full((320, 32), 3e38), "model__norm__weight": torch.full((32,), 100.0)}
OVERFLOW = BrokenFolder("finite weights", "llama", lambda folder: write_tensors(folder, **LARGE))
ROPE = BrokenFolder(
    "an unknown rope type",
    "llama",
    lambda folder: write_json(folder / "config.json", "rope_parameters", {"rope_type": "spiral", "rope_theta": 1e4}),
)


def doctor(folder: Path) -> str:
    ran = run_cli("doctor", "--model", folder, "--port", 0, "--json")
    return next(
        one["says"] for one in ran.document["findings"] if one["name"] == "model" and one["status"] == "problem"
    )


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (FOLDERS["model-00002-of-00002.safetensors absent"], "lacks the file 'model-00002-of-00002.safetensors'"),
        (FOLDERS["model.safetensors cut at 0.5"], "model.safetensors is cut short"),
        (FOLDERS["model.safetensors a pointer"], "model.safetensors is a pointer of Git LFS"),
        (FOLDERS["tokenizer.json absent"], "has no tokenizer: it lacks the file 'tokenizer.json'"),
        (FOLDERS["tokenizer.json a pointer"], "tokenizer.json is a pointer of Git LFS"),
        (FOLDERS["model.layers.3.mlp.up_proj.weight missing"], "lacks the tensor 'model.layers.3.mlp.up_proj.weight'"),
        (
            FOLDERS["config.json dtype is bfloat17"],
            "config.json: dtype is 'bfloat17'; it must be auto or one of float32",
        ),
        (FOLDERS["config.json no JSON"], "config.json is no JSON: "),
        (
            FOLDERS["an adapter"],
            "is an adapter, as of LoRA (adapter_config.json without config.json); merge it into its ",
        ),
        (ROPE, "config.json: rope_type 'spiral' is not known; supported are default, linear, llama3, yarn"),
    ],
    ids=lambda value: value.name if isinstance(value, BrokenFolder) else "",
)
def test_all_commands_refuse_a_broken_checkpoint_in_the_same_sentence(
    broken: BrokenFolder, says: str, tmp_path: Path
) -> None:
    folder = broken.write(tmp_path / "model")
    with pytest.raises(SpectraError) as refused:
        check_model(ServeConfig(model=str(folder)), is_local=True)
    sentence = str(refused.value)
    assert says in sentence
    assert doctor(folder) == sentence
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Snow"}\n')
    commands = [
        ("generate", "--model", folder, "--prompt", "Snow", "--raw"),
        ("bench", "--model", folder, "--methods", "pld", "--prompts", prompts, "--out", tmp_path / "out"),
        ("heads", "find", "--model", folder, "--out", tmp_path / "heads.json"),
        ("vocabulary", "read", "--model", folder),
        ("train", "--target", folder, "--method", "eagle", "--prompts", prompts, "--out", tmp_path / "drafter"),
    ]
    if broken.named in ("config.json", "config.json: dtype", "adapter_config.json") or broken is ROPE:
        commands.append(("plan", "--model", folder, "--gpus", 1, "--gpu-memory-gib", 80))
    for command in commands:
        ran = run_cli(*command)
        assert (ran.status, ran.err) == (2, f"spectra: {sentence}\n"), command


def test_weights_that_are_not_numbers_are_refused_when_they_are_read(tmp_path: Path) -> None:
    folder = NAN.write(tmp_path / "model")
    ran = run_cli("generate", "--model", folder, "--prompt", "Snow")
    assert (ran.status, ran.out) == (2, "")
    file = folder / "model.safetensors"
    assert ran.err == f"spectra: {file} cannot be loaded: 'model.norm.weight' holds NaN or infinity in float32\n"


@pytest.mark.parametrize("dtype", ["auto", "torch.bfloat16"])
def test_any_spelling_of_a_dtype_is_planned_with(dtype: str, tmp_path: Path) -> None:
    folder = FOLDERS[f"config.json dtype is {dtype}"].write(tmp_path / "model")
    planned = run_cli("plan", "--model", folder, "--gpus", 1, "--gpu-memory-gib", 80)
    assert planned.status == 0, planned.err


@pytest.mark.parametrize("what", ["raises", "is no Jinja"])
def test_a_chat_template_that_fails_is_one_sentence(what: str, tmp_path: Path) -> None:
    folder = FOLDERS[f"a template that {what}"].write(tmp_path / "model")
    ran = run_cli("generate", "--model", folder, "--prompt", "Snow")
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith(
        f"spectra: {folder} (--raw uses no template): the chat template fails on this conversation:"
    )


@pytest.mark.parametrize("temperature", [0, 0.8])
async def test_logits_that_overflow_fail_their_request(
    temperature: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = OVERFLOW.write(tmp_path / "model")
    body = {"model": "tiny", "prompt": "Snow", "temperature": temperature}
    async with over_engine(folder, load_tokenizer(folder)) as client:
        answer = await client.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert NOT_FINITE in caplog.text
    ran = run_cli("generate", "--model", folder, "--prompt", "Snow", "--temperature", temperature, *PLAIN)
    assert (ran.status, ran.out, ran.err) == (2, "", f"spectra: {NOT_FINITE}\n")


def test_a_broken_draft_model_is_refused_with_its_flag(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = FOLDERS["model.safetensors cut at 0.5"].write(tmp_path / "model")
    sentence = f"--draft-model: {folder} cannot be loaded: model.safetensors is cut short, it ends at byte"
    ran = run_cli("generate", "--model", tiny_checkpoint, "--prompt", "Snow", "--draft-model", folder)
    assert (ran.status, ran.err.startswith(f"spectra: {sentence}")) == (2, True)
    with pytest.raises(SpectraError, match=re.escape(sentence)):
        check_model(ServeConfig(model=str(tiny_checkpoint), draft_model=str(folder)), is_local=True)
