"""A converted GGUF file is the model that was written, for every family and every tensor type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from engine.model import families
from engine.model.gguf.config import read_config
from engine.model.gguf.header import GgufHeader, TensorInfo
from engine.model.loader import load_spec
from engine.model.resolve import resolve
from tests.support.gguf_files import FAMILIES, LONG, RANDOM, WRITTEN, model_for_gguf, write_gguf


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _logits(model: Any) -> torch.Tensor:
    ids = torch.randint(3, model.config.vocab_size, (1, LONG), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits: torch.Tensor = model(ids).logits
    return logits


def test_every_supported_family_is_tested() -> None:
    assert set(FAMILIES) == {name for name, family in families.FAMILIES.items() if family.gguf.architecture}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_of_a_family_has_the_model_s_parameters_and_logits(family: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", family)
    folder = resolve(str(tmp_path / "model.gguf"))
    original, converted = model_for_gguf(family), AutoModelForCausalLM.from_pretrained(folder).eval()
    assert type(converted) is type(original)
    for name, parameter in original.state_dict().items():
        tolerance = 1e-6 if "norm" in name else 0.0  # Gemma's files hold norms as 1 + weight
        torch.testing.assert_close(converted.state_dict()[name], parameter, rtol=0, atol=tolerance)
    torch.testing.assert_close(_logits(converted), _logits(original), rtol=1e-4, atol=1e-4)
    spec = load_spec(folder)
    assert spec.family == family
    assert spec.eos_ids == (2,)
    assert spec.logit_softcap == getattr(original.config, "final_logit_softcapping", None)


@pytest.mark.parametrize("kind", [*WRITTEN, *RANDOM])
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_every_tensor_type_is_dequantised_as_the_library_does(family: str, kind: str, tmp_path: Path) -> None:
    held = write_gguf(tmp_path / "model.gguf", family, kind)
    converted = load_file(resolve(str(tmp_path / "model.gguf")) / "model.safetensors")
    assert converted.keys() == held.keys()
    for name, weights in held.items():
        np.testing.assert_array_equal(converted[name], weights, err_msg=name)
    assert all(np.isfinite(weights).all() for weights in held.values())


@pytest.mark.parametrize(("family", "kind"), [("llama", "Q4_K"), ("qwen2", "Q5_0"), ("qwen3", "Q6_K")])
def test_transformers_reads_the_same_parameters_from_the_file(family: str, kind: str, tmp_path: Path) -> None:
    # Its configs of these files are wrong (rotary scaling, size of heads), so only parameters are compared.
    write_gguf(tmp_path / "model.gguf", family, kind)
    folder = resolve(str(tmp_path / "model.gguf"))
    config = AutoModelForCausalLM.from_pretrained(folder).config
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", config=config, dtype=torch.float32
    ).state_dict()
    ours = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_llama_without_scaled_positions_has_the_logits_that_transformers_computes(tmp_path: Path) -> None:
    write_gguf(
        tmp_path / "model.gguf",
        "mistral",
        "Q4_1",
        {"llama.attention.sliding_window": None, "llama.rope.dimension_count": 64},
    )
    ours = AutoModelForCausalLM.from_pretrained(resolve(str(tmp_path / "model.gguf"))).eval()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32).eval()
    assert ours.config.model_type == theirs.config.model_type == "llama"
    assert torch.equal(_logits(ours), _logits(theirs))


def test_a_file_says_which_layers_slide(tmp_path: Path) -> None:
    slides = [True, False] * 3 + [True]
    write_gguf(tmp_path / "model.gguf", "gemma3_text", changed={"gemma3.attention.sliding_window_pattern": slides})
    config = json.loads((resolve(str(tmp_path / "model.gguf")) / "config.json").read_text())
    assert [kind == "sliding_attention" for kind in config["layer_types"]] == slides


def test_queries_of_the_largest_gemma_are_scaled_by_its_hidden_size(tmp_path: Path) -> None:
    sizes = {"attention.head_count": 32, "attention.key_length": 128, "embedding_length": 5376, "block_count": 62}
    others = {"feed_forward_length": 21504, "context_length": 131072, "attention.layer_norm_rms_epsilon": 1e-6}
    metadata = {f"gemma3.{key}": value for key, value in (sizes | others).items()}
    embedding = TensorInfo(type=8, shape=(262144, 5376), first=0, n_bytes=0)
    tensors = dict.fromkeys(["token_embd.weight", *(f"blk.{layer}.attn_norm.weight" for layer in range(62))], embedding)
    header = GgufHeader(tmp_path, 0, {"general.architecture": "gemma3"} | metadata, tensors, "")
    assert read_config(header)["query_pre_attn_scalar"] == 168
    smaller = GgufHeader(tmp_path, 0, header.metadata | {"gemma3.block_count": 48}, tensors, "")
    assert read_config(smaller)["query_pre_attn_scalar"] == 128
