"""Checkpoints in every quantised format: weights and texts are those that other packages read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine import device
from engine.errors import UnsupportedModelError
from engine.model.families import FAMILIES
from engine.model.loader import load_config, load_shard
from engine.model.matrices.experts import Experts, put_experts
from engine.model.matrices.groups import GroupedLinear, widen
from engine.model.matrices.linears import ScaledLinear
from engine.model.matrices.quantization import stored_quantization
from engine.model.ranges import LayerRange
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target_model.info import TargetInfo
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from tests.support.dequantized_models import dequantized_model
from tests.support.engines import complete_all, make_engine
from tests.support.quantized_checkpoints import FORMATS, UNQUANTIZED, is_quantized, quantized_checkpoint
from tests.support.tiny_models import random_prompts
from tests.support.wide_models import wide_model

CPU = torch.device("cpu")
WHOLE = LayerRange(0, 2, 2)
N_TOKENS = 12
LARGEST_ERRORS = {4: 0.125, 8: 0.03}  # of weights with so many bits, by their norm
ACT_ORDER = "gptq act-order"
QUICK_TEXTS = (ACT_ORDER, "awq 128", "int4 64 asymmetric", "fp8 block cut short")
QUICK_WEIGHTS = (*QUICK_TEXTS, "gptq asymmetric", "gptq 8 bits", "gptq_v2", "fp8 tensor", "modelopt apart")
WEIGHTS = [pytest.param(name, marks=() if name in QUICK_WEIGHTS else pytest.mark.matrix) for name in FORMATS]


def load(path: Path) -> ModelShard:
    return load_shard(path, WHOLE, dtype=torch.float32, device=CPU, n_positions=128)


def weights_of(layers: Iterable[nn.Module]) -> dict[str, Tensor]:
    """Return the fp32 weights of all matrices of decoder layers, whatever they are stored as."""
    found = {}
    for name, module in nn.ModuleList(layers).named_modules():
        if isinstance(module, GroupedLinear):
            found[name] = widen(module.weight, module.groups, torch.float32)
        elif isinstance(module, ScaledLinear):
            found[name] = module.weight.float() * module.output_scales[:, None]
        elif isinstance(module, nn.Linear):
            found[name] = module.weight.detach()
    return found


def expected_weights(model: Any) -> dict[str, Tensor]:
    """Return the same of Hugging Face's model, which has all experts of a layer in two tensors."""
    found = weights_of(model.model.layers)
    for i, layer in enumerate(model.model.layers):
        experts = getattr(layer.mlp, "experts", None)
        if experts is not None:
            found |= {f"{i}.mlp.experts.{name}": own for name, own in weights_of(Experts.of(experts)).items()}
    return found


def check_weights(path: Path, found: Mapping[str, Tensor], model: Any, family: str, name: str) -> None:
    stored_as = stored_quantization(load_config(path))
    assert stored_as is not None and stored_as.layout is not None  # noqa: PT018
    expected, original = expected_weights(model), expected_weights(wide_model(family, FORMATS[name].inner))
    assert found.keys() == expected.keys() == original.keys()
    limit = LARGEST_ERRORS[stored_as.layout.bits]
    for key, weight in found.items():
        assert torch.equal(weight, expected[key]), key
        error = (weight - original[key]).norm() / original[key].norm()
        stored = FAMILIES[family].stored_name(f"model.layers.{key}.weight")
        assert (error > 0) == (is_quantized(stored) and not stored.startswith(UNQUANTIZED)), key
        assert error < limit, key  # else reader and writer agree on a wrong meaning


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_those_of_other_readers(name: str, tmp_path: Path) -> None:
    path = quantized_checkpoint("llama", tmp_path / "quantized", name)
    model = dequantized_model(path, tmp_path / "dense")
    check_weights(path, weights_of(load(path).layers), model, "llama", name)


@pytest.mark.parametrize("name", WEIGHTS)
def test_numbers_in_memory_stand_for_the_same_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "is_host", lambda _: False)  # a GPU keeps numbers in memory
    path = quantized_checkpoint("qwen3_moe", tmp_path / "quantized", name)
    if name == ACT_ORDER:
        with pytest.raises(
            UnsupportedModelError, match=r"act-order \(desc_act .*\): such weights are read on a CPU alone"
        ):
            load(path)
        return
    shard = load(path)
    modules = nn.ModuleList(shard.layers).modules()
    kinds = {type(module) for module in modules if isinstance(module, GroupedLinear | ScaledLinear)}
    assert len(kinds) == 1
    check_weights(path, weights_of(shard.layers), dequantized_model(path, tmp_path / "dense"), "qwen3_moe", name)


def texts_of(target: LocalTarget, method: str, **values: Any) -> list[list[int]]:
    params = [SamplingParams(max_tokens=N_TOKENS, stop_ids=(2,), seed=seed, **values) for seed in (5, 6)]
    jobs = [Request(text, one, method) for text, one in zip(random_prompts(2), params, strict=True)]
    return [done.token_ids for done in complete_all(make_engine(target), jobs)]


def cases() -> list[Any]:
    """Return formats, families and whether numbers stay in memory as on a GPU; most are marked ``matrix``."""
    return [
        pytest.param(
            name, family, is_on_gpu, id=f"{name}, {family}", marks=() if name in QUICK_TEXTS else pytest.mark.matrix
        )
        for name in FORMATS
        for family, is_on_gpu in (("qwen3", False), ("mixtral", name != ACT_ORDER))
    ]


@pytest.mark.parametrize(("name", "family", "is_on_gpu"), cases())
def test_texts_are_those_of_hugging_face_with_the_same_weights(
    name: str, family: str, is_on_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = quantized_checkpoint(family, tmp_path / "quantized", name)
    model = dequantized_model(path, tmp_path / "dense")
    greedy = [
        model.generate(torch.tensor([text]), max_new_tokens=N_TOKENS, do_sample=False, eos_token_id=2)[0, len(text) :]
        for text in random_prompts(2)
    ]
    put_experts(model)
    spec = read_spec(model.config)
    reference = LocalTarget.of_shards(TargetInfo(spec, 200, 16, 500), [ModelShard(model, spec, WHOLE, 600)])
    seeded = texts_of(reference, "autoregressive", temperature=1.0)
    if is_on_gpu:
        monkeypatch.setattr(device, "is_host", lambda _: False)
    for stages, method in ((1, "pld"), (2, "suffix+token-recycling")):
        options = TargetOptions(str(path), stages=stages, kv_bytes=1 << 20, block_size=16)
        target = LocalTarget.load(options, path)
        assert texts_of(target, method) == [text.tolist() for text in greedy]
        assert texts_of(target, method, temperature=1.0) == seeded
