"""int8 as on a GPU: of weights alone. Texts are those of Hugging Face's modules with the numbers meant."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import device
from engine.errors import UnsupportedModelError
from engine.model.loader import SINGLE, load_config, load_shard, load_spec
from engine.model.quantized import SCALES
from engine.model.ranges import LayerRange
from engine.model.scaled import ScaledLinear, quantize_rows
from engine.model.shard import ModelShard
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target.layer_cost import layer_costs
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from tests.support.engines import complete_all, make_engine
from tests.support.fp8_checkpoints import int8_checkpoint, rounded_model
from tests.support.tiny_models import random_prompts, saved_model

CPU = torch.device("cpu")
N_TOKENS = 12


@pytest.fixture(autouse=True)
def gpu_without_bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU passes for a GPU where that decides how int8 is done; the package is not there."""
    monkeypatch.setattr(device, "is_host", lambda _: False)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)


def shard_of(path: Path, name: str | None = None) -> ModelShard:
    whole = LayerRange(0, 4, 4)
    return load_shard(path, whole, dtype=torch.float32, device=CPU, n_positions=8, quantization=name)


def their_text(model: Any, prompt: list[int]) -> list[int]:
    found = model.generate(torch.tensor([prompt]), max_new_tokens=N_TOKENS, do_sample=False, eos_token_id=2)
    text: list[int] = found[0, len(prompt) :].tolist()
    return text


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_texts_are_those_of_the_numbers_meant(family: str, is_stored: bool, tmp_path: Path) -> None:
    path, name = (int8_checkpoint(family, tmp_path / "int8"), None) if is_stored else (saved_model(family), "int8")
    model, texts = rounded_model(family, torch.int8), random_prompts(2)
    wanted = [their_text(model, text) for text in texts]
    jobs = [Request(text, SamplingParams(max_tokens=N_TOKENS, stop_ids=(2,)), "pld") for text in texts]
    for stages in (1, 2):
        options = TargetOptions(str(path), stages=stages, kv_bytes=1 << 20, block_size=16, quantization=name)
        done = complete_all(make_engine(LocalTarget.load(options, path)), jobs)
        assert [one.token_ids for one in done] == wanted


def test_all_matrices_of_the_layers_have_one_byte(tmp_path: Path) -> None:
    stored = load_file(int8_checkpoint("llama", tmp_path / "int8") / SINGLE)
    for path, name in ((saved_model("llama"), "int8"), (tmp_path / "int8", None)):
        for i, layer in enumerate(shard_of(path, name).layers):
            found = {at: one for at, one in layer.named_modules() if isinstance(one, ScaledLinear)}
            assert len(found) == 7
            assert not any(type(one) is torch.nn.Linear for one in layer.modules())
            for at, module in found.items():
                full = f"model.layers.{i}.{at}"
                assert torch.equal(module.weight, stored[f"{full}.weight"])
                torch.testing.assert_close(module.output_scales, stored[f"{full}.{SCALES}"] / 127, rtol=1e-6, atol=0)


def test_scales_of_another_shape_are_refused(tmp_path: Path) -> None:
    path = int8_checkpoint("llama", tmp_path / "int8")
    name = f"model.layers.1.mlp.down_proj.{SCALES}"
    save_file(load_file(path / SINGLE) | {name: torch.ones(2, 3)}, path / SINGLE)
    with pytest.raises(UnsupportedModelError, match=rf"'{name}' in .* the shape \[2, 3\]; int8 is read with one scale"):
        shard_of(path)


def test_sums_of_numbers_beyond_fp16_are_none_of_its_sums() -> None:
    torch.manual_seed(3)
    weight, rows = torch.randn(5, 4096) * 0.02, torch.randn(2, 4096)
    weight[:, 17], rows[:, 17] = 0.07, 2000.0  # as models have them in a few places: times 127 more than fp16 holds
    layer = ScaledLinear(*quantize_rows(weight, torch.int8), None)
    found, meant = layer(rows.half()), layer(rows.double().float())
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), meant, rtol=0.02, atol=0.2)


def test_a_layer_is_measured_as_it_will_run() -> None:
    path = saved_model("llama")
    found = layer_costs(load_config(path), load_spec(path), torch.float32, CPU, "int8")
    assert all(seconds > 0 for seconds in found.layers)
