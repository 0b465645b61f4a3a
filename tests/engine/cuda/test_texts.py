"""Texts of an executor, with either kind of products, are those of Hugging Face's layers on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.cuda.executor import Executor
from engine.cuda.products import Products
from engine.model.loader import load_shard, load_spec
from engine.model.ranges import LayerRange
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target_model.info import TargetInfo
from engine.target_model.local import LocalTarget
from tests.support.engines import complete_all, make_engine
from tests.support.fp8_checkpoints import fp8_checkpoint
from tests.support.tiny_models import saved_model

TEXT = [5, 6, 7]


@pytest.mark.parametrize(
    ("family", "products", "strategy", "quantization"),
    [
        pytest.param("qwen2", Products(by_library=True), None, None, marks=pytest.mark.cluster),
        pytest.param("qwen2", Products(by_library=True), None, "fp8", marks=pytest.mark.matrix),
        pytest.param("qwen2", Products(), "tensor", None, marks=pytest.mark.matrix),
        pytest.param("qwen2", Products(row_tile=16), "channel", None, marks=pytest.mark.matrix),
        pytest.param("qwen3_moe", Products(), None, None, marks=pytest.mark.matrix),
        pytest.param("mixtral", Products(by_library=True), None, "fp8", marks=pytest.mark.matrix),
    ],
    ids=str,
)
def test_texts_are_those_of_hugging_face_layers(
    family: str, products: Products, strategy: str | None, quantization: str | None, tmp_path: Path
) -> None:
    path = saved_model(family) if strategy is None else fp8_checkpoint(family, tmp_path / "fp8", strategy)
    found: list[list[list[int]]] = []
    answers: dict[tuple[int, ...], list[int]] = {}
    for has_executor in (False, True):
        shard = load_shard(
            path,
            LayerRange(0, 4, 4),
            dtype=torch.float32,
            device=torch.device("cpu"),
            n_positions=64,
            quantization=quantization,
        )
        executors = [Executor(shard, products, split=16, buckets=(1, 8))] if has_executor else []
        target = LocalTarget.of_shards(TargetInfo(load_spec(path), 80, 4, 60), [shard], executors=executors)
        jobs = [Request(TEXT, SamplingParams(max_tokens=4), method) for method in ("autoregressive", "always-right")]
        engine = make_engine(target, answers)
        found.append([done.token_ids for done in complete_all(engine, jobs)])
        answers = {tuple(TEXT): found[0][0]}
    assert found[0] == found[1]
