"""Weights of one byte in the executor: the texts of the same layers on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine import device
from engine.cuda.executor import Executor
from engine.cuda.small_weights import multiply_by_kernel
from engine.cuda.weights import pack_layers
from engine.model import scaled
from engine.model.loader import load_shard, load_spec
from engine.model.ranges import split_layers
from engine.model.scaled import ScaledLinear
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target.info import TargetInfo
from engine.target.local import LocalTarget
from tests.support.engines import complete_all, make_engine
from tests.support.fp8_checkpoints import fp8_checkpoint
from tests.support.tiny_models import saved_model

CPU = torch.device("cpu")
SIZES = {torch.float8_e4m3fn: "fp8", torch.int8: "int8"}


def target_of(path: Path, quantization: str | None, is_exact: bool) -> LocalTarget:
    shards = [
        load_shard(path, layers, dtype=torch.float32, device=CPU, n_positions=64, quantization=quantization)
        for layers in split_layers(4, 1)
    ]
    executors = [Executor(shard, 16, (1, 8)) for shard in shards] if is_exact else []
    return LocalTarget(TargetInfo(load_spec(path), 80, 4, 60), shards, executors=executors)


@pytest.mark.parametrize(("strategy", "made"), [("tensor", None), (None, "fp8")])
def test_fp8_texts_are_those_of_a_cpu(strategy: str | None, made: str | None, tmp_path: Path) -> None:
    path = saved_model("qwen2") if strategy is None else fp8_checkpoint("qwen2", tmp_path / "fp8", strategy)
    job = Request([5, 6, 7], SamplingParams(max_tokens=4), "autoregressive")
    found = [
        complete_all(make_engine(target_of(path, made, is_exact)), [job])[0].token_ids for is_exact in (False, True)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", SIZES, ids=str)
def test_packed_matrices_stand_for_the_same_numbers(dtype: torch.dtype) -> None:
    layers = split_layers(4, 1)[0]
    shard = load_shard(
        saved_model("qwen2"), layers, dtype=torch.float32, device=CPU, n_positions=8, quantization=SIZES[dtype]
    )
    plain = load_shard(saved_model("qwen2"), layers, dtype=torch.float32, device=CPU, n_positions=8)
    for small, full in zip(pack_layers(shard), pack_layers(plain), strict=True):
        for one, other in ((small.qkv, full.qkv), (small.gate_up, full.gate_up), (small.down, full.down)):
            assert one.weight.dtype == dtype
            assert one.scales is not None
            meant = one.weight.float() * one.scales[:, None]
            assert float((meant - other.weight).abs().max()) < 0.04 * float(other.weight.abs().max())


@pytest.mark.parametrize(
    ("strategy", "made", "n_small"), [(None, "int8", 28), (None, "fp8", 28), ("channel", None, 27)]
)
def test_layers_of_hugging_face_multiply_by_the_kernel(
    strategy: str | None, made: str | None, n_small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved_model("qwen2") if strategy is None else fp8_checkpoint("qwen2", tmp_path / "fp8", strategy)
    monkeypatch.setattr(device, "is_host", lambda _: False)
    layers = split_layers(4, 1)[0]
    job, found = Request([5, 6, 7], SamplingParams(max_tokens=4), "autoregressive"), []
    for by_kernel in (False, True):
        shard = load_shard(path, layers, dtype=torch.float32, device=CPU, n_positions=64, quantization=made)
        if by_kernel:
            multiply_by_kernel(shard)
            monkeypatch.setattr(scaled, "functional", None)  # what multiplies converted weights
            small = [one for layer in shard.layers for one in layer.modules() if isinstance(one, ScaledLinear)]
            assert [one.product is not None for one in small] == [True] * n_small
        target = LocalTarget(TargetInfo(load_spec(path), 80, 4, 60), [shard])
        found.append(complete_all(make_engine(target), [job])[0].token_ids)
    assert found[0] == found[1]
