"""Weights of one byte multiplied by kernels give the outputs of the same layers on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine import device
from engine.cuda.executor import Executor
from engine.cuda.small_weights import multiply_by_kernel
from engine.model import scaled
from engine.model.loader import load_shard, load_spec
from engine.model.ranges import LayerRange
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target.info import TargetInfo
from engine.target.local import LocalTarget
from tests.support.engines import complete_all, make_engine
from tests.support.fp8_checkpoints import fp8_checkpoint
from tests.support.tiny_models import saved_model


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("strategy", "quantization", "is_exact"),
    [("tensor", None, True), (None, "fp8", True), (None, "int8", False), ("channel", None, False)],
)
def test_outputs_are_those_of_a_cpu(
    strategy: str | None, quantization: str | None, is_exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the executor, or of Hugging Face's layers with the kernel for their products."""
    path = saved_model("qwen2") if strategy is None else fp8_checkpoint("qwen2", tmp_path / "fp8", strategy)
    if not is_exact:
        monkeypatch.setattr(device, "is_host", lambda _: False)
    found = []
    for by_kernel in (False, True):
        shard = load_shard(
            path,
            LayerRange(0, 4, 4),
            dtype=torch.float32,
            device=torch.device("cpu"),
            n_positions=64,
            quantization=quantization,
        )
        if by_kernel and not is_exact:
            multiply_by_kernel(shard)
            monkeypatch.setattr(scaled, "functional", None)  # it would multiply converted weights
        executors = [Executor(shard, 16, (1, 8))] if by_kernel and is_exact else []
        target = LocalTarget(TargetInfo(load_spec(path), 80, 4, 60), [shard], executors=executors)
        job = Request([5, 6, 7], SamplingParams(max_tokens=4), "autoregressive")
        found.append(complete_all(make_engine(target), [job])[0].token_ids)
    assert found[0] == found[1]
