"""Int8 weights: bitsandbytes' arithmetic row by row, Hugging Face's own int8 models, and texts that do not depend on
how they are made."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from engine.errors import ConfigError, UnsupportedModelError
from engine.model import quantized
from engine.model.loader import load_shard, load_spec
from engine.model.quantization import bitsandbytes
from engine.model.quantized import Int8Linear, quantize
from engine.model.ranges import LayerRange
from engine.model.shard import ModelShard
from engine.protocol import Needs
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.stage.stage import Stage
from engine.step import SequenceStart, Step, Work
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from tests.support.engines import complete_all, make_engine
from tests.support.tiny_models import random_prompts, reference_tokens, saved_model

CPU = torch.device("cpu")
FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")
N_TOKENS = 12
WHOLE = LayerRange(0, 4, 4)


@pytest.fixture(scope="module")
def their_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    """``their_model(family)``: Hugging Face's int8 version of a checkpoint, and the folder it was saved to."""
    made: dict[str, tuple[Any, Path]] = {}

    def load(family: str) -> tuple[Any, Path]:
        if family not in made:
            bitsandbytes()  # before transformers imports it with its warnings
            model = AutoModelForCausalLM.from_pretrained(
                saved_model(family),
                quantization_config=BitsAndBytesConfig(load_in_8bit=True),
                device_map={"": "cpu"},
                dtype=torch.float32,
            )
            path = tmp_path_factory.mktemp(f"{family}-int8")
            model.save_pretrained(path)
            made[family] = model, path
        return made[family]

    return load


class TheirText:
    """A text that grows token by token in their model: all its batches have one row."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._cache: Any = None

    @torch.no_grad()
    def push(self, token: int) -> Tensor:
        """Logits behind the token."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it rounds activations to float16
            out = self._model(torch.tensor([[token]]), past_key_values=self._cache, use_cache=True)
        self._cache = out.past_key_values
        logits: Tensor = out.logits[0, -1]
        return logits


def their_logits(model: Any, text: list[int]) -> Tensor:
    """Logits behind every token of a text."""
    growing = TheirText(model)
    return torch.stack([growing.push(token) for token in text])


def their_text(model: Any, prompt: list[int]) -> list[int]:
    """What they write greedily."""
    growing = TheirText(model)
    text = [int([growing.push(token) for token in prompt][-1].argmax())]
    while len(text) < N_TOKENS and text[-1] != 2:
        text.append(int(growing.push(text[-1]).argmax()))
    return text


@torch.inference_mode()
def our_logits(shard: ModelShard, text: list[int]) -> Tensor:
    """The same for a shard of all layers, which gets the text as one chunk."""
    stage = Stage(shard, 8, 16)
    start = SequenceStart(0, SamplingParams(), len(text), Needs())
    activations = stage.forward(Step(0, [Work(0, 0, text, new_blocks=list(range(8)))], [start]), None)
    return shard.logits(activations.hidden[0])


def load(path: Path, stages: int = 1, quantization: str | None = "int8") -> LocalTarget:
    options = TargetOptions(str(path), stages=stages, kv_bytes=1 << 20, block_size=16, quantization=quantization)
    return LocalTarget.load(options, path)


def layer_of(n_in: int, n_out: int, threshold: float = 6.0) -> tuple[Int8Linear, Any]:
    """A random layer of ours, and the same one of bitsandbytes."""
    torch.manual_seed(3)
    weight, bias = torch.randn(n_out, n_in), torch.randn(n_out)
    package = bitsandbytes()
    theirs = package.nn.Linear8bitLt(n_in, n_out, has_fp16_weights=False, threshold=threshold)
    theirs.weight = package.nn.Int8Params(weight.clone(), requires_grad=False, has_fp16_weights=False)
    theirs.bias.data = bias
    ours = Int8Linear(*quantize(weight, CPU), torch.nn.Parameter(bias, requires_grad=False), threshold)
    return ours, theirs.to("cpu").eval()


@torch.inference_mode()
@pytest.mark.filterwarnings("ignore:MatMul8bitLt")
@pytest.mark.parametrize("threshold", [6.0, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_gets_what_bitsandbytes_gives_it_in_a_batch_of_one(dtype: torch.dtype, threshold: float) -> None:
    ours, theirs = layer_of(64, 96, threshold)
    rows = torch.randn(6, 64)
    rows[2, 3], rows[4, 9], rows[4, 10] = 20.0, -8.0, 6.0  # outliers
    rows = rows.to(dtype)
    wanted = torch.cat([theirs(row.unsqueeze(0)) for row in rows])
    assert ours(rows).dtype is dtype
    assert torch.allclose(ours(rows), wanted, rtol=torch.finfo(dtype).eps * 4, atol=torch.finfo(dtype).eps * 100)


@torch.inference_mode()
@pytest.mark.filterwarnings("ignore:MatMul8bitLt")
def test_a_row_does_not_depend_on_outliers_of_its_neighbours() -> None:
    ours, theirs = layer_of(64, 96)
    rows = torch.randn(6, 64)
    loud = rows.clone()
    loud[5, 7] = 40.0
    assert torch.equal(ours(rows)[:5], ours(loud)[:5])
    assert not torch.equal(theirs(rows)[:5], theirs(loud)[:5])  # or this module would not be needed


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_stored", [False, True])
def test_logits_are_those_of_hugging_faces_int8_model(family: str, is_stored: bool, their_model: Any) -> None:
    text = random_prompts(1)[0][:20]
    model, stored = their_model(family)
    path, wanted = (stored, None) if is_stored else (saved_model(family), "int8")
    shard = load_shard(path, WHOLE, dtype=torch.float32, device=CPU, n_positions=64, quantization=wanted)
    plain = load_shard(saved_model(family), WHOLE, dtype=torch.float32, device=CPU, n_positions=64)
    theirs = their_logits(model, text)
    error, distance = (our_logits(shard, text) - theirs).abs(), (our_logits(plain, text) - theirs).abs()
    # Both round activations to 255 steps: should noise of the last float32 bit tip one, a step is what they differ by.
    assert error.mean() < 0.1 * distance.mean()
    assert error.median() < 1e-4


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_the_text_is_that_of_hugging_faces_int8_model_whatever_the_method_and_the_stages(
    family: str,
    their_model: Any,
) -> None:
    texts = random_prompts(3)
    model, _ = their_model(family)
    wanted = [their_text(model, text) for text in texts]
    assert wanted != [
        reference_tokens(family, tuple(text), len(answer)) for text, answer in zip(texts, wanted, strict=True)
    ]
    for stages in (1, 2, 3):
        made = load(saved_model(family), stages)
        for method in ("autoregressive", "pld", "lookahead"):
            jobs = [Request(text, SamplingParams(max_tokens=N_TOKENS, stop_ids=(2,)), method) for text in texts]
            assert [one.token_ids for one in complete_all(make_engine(made), jobs)] == wanted


def test_sampled_texts_do_not_depend_on_method_stages_or_company() -> None:
    texts = random_prompts(4)
    found = []
    for stages, method, company in ((1, "autoregressive", 1), (2, "pld", 4), (4, "lookahead", 2)):
        params = [SamplingParams(max_tokens=20, temperature=0.8, seed=seed, stop_ids=(2,)) for seed in range(4)]
        jobs = [Request(text, one, method) for text, one in zip(texts, params, strict=True)]
        done = complete_all(make_engine(load(saved_model("qwen3"), stages)), jobs, company)
        found.append([one.token_ids for one in done])
    assert found[0] == found[1] == found[2]


def test_a_stored_int8_checkpoint_is_read_stage_by_stage(their_model: Any) -> None:
    _, stored = their_model("qwen2")
    assert load_spec(stored).family == "qwen2"
    jobs = [Request(text, SamplingParams(max_tokens=N_TOKENS, stop_ids=(2,)), "pld") for text in random_prompts(2)]
    ours = [one.token_ids for one in complete_all(make_engine(load(saved_model("qwen2"))), jobs)]
    for stages, told in ((1, None), (2, None), (2, "int8")):
        done = complete_all(make_engine(load(stored, stages, told)), jobs)
        assert [one.token_ids for one in done] == ours


def test_matrices_of_the_layers_are_int8_and_nothing_else_is() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        shard = load_shard(saved_model("qwen2"), WHOLE, dtype=dtype, device=CPU, n_positions=8, quantization="int8")
        assert shard.dtype is dtype
        for layer in shard.layers:
            matrices = [one for one in layer.modules() if isinstance(one, Int8Linear)]
            assert len(matrices) == 7
            assert not any(type(one) is torch.nn.Linear for one in layer.modules())
            assert {one.get_buffer("weight").dtype for one in matrices} == {torch.int8}
            assert {weight.dtype for weight in layer.parameters()} == {dtype}
        assert shard._head is not None
        assert shard._head.weight.dtype is dtype
        assert our_logits(shard, [5, 6, 7]).dtype is dtype


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq .* bitsandbytes' int8"),
        ({"quant_method": "awq", "bits": 4}, "awq .* bitsandbytes' int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "load_in_8bit"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # transformers warns about what we are about to refuse
def test_other_quantisations_are_refused_and_ours_is_named(config: dict[str, Any], told: str, tmp_path: Path) -> None:
    path = tmp_path / "other"
    shutil.copytree(saved_model("llama"), path)
    values = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(values | {"quantization_config": config}))
    with pytest.raises(UnsupportedModelError, match=told):
        load_spec(path)


def test_a_missing_package_and_an_unknown_name_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="quantization is 'int4'; it must be int8"):
        load(saved_model("llama"), quantization="int4")
    quantized.bitsandbytes.cache_clear()
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match=r"bitsandbytes, which is not installed: pip install 'spectra-serve\[int8\]'"):
        load(saved_model("llama"))
