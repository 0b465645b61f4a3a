"""Models without memory, built by several threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from engine.model.loader import load_config, load_shard
from engine.model.meta_model import empty_model
from engine.model.ranges import LayerRange
from tests.support.tiny_models import saved_model


def test_parameters_have_shapes_only_and_buffers_are_computed() -> None:
    model = empty_model(load_config(saved_model("qwen3")), torch.bfloat16)
    assert {(weight.device.type, weight.dtype) for weight in model.parameters()} == {("meta", torch.bfloat16)}
    assert model.model.rotary_emb.inv_freq.device.type == "cpu"


def test_threads_that_load_at_once_leave_the_process_as_it_was() -> None:
    path, cpu = saved_model("llama"), torch.device("cpu")

    def load(number: int) -> set[tuple[str, torch.dtype]]:
        dtype = (torch.float32, torch.bfloat16)[number % 2]
        shard = load_shard(path, LayerRange(0, 4, 4), dtype=dtype, device=cpu, n_positions=8)
        return {(weight.device.type, weight.dtype) for layer in shard.layers for weight in layer.parameters()}

    with ThreadPoolExecutor(8) as threads:
        loaded = list(threads.map(load, range(48)))
    assert loaded == [{("cpu", torch.float32)}, {("cpu", torch.bfloat16)}] * 24
    ours = torch.nn.Linear(1, 1).weight
    assert (ours.device, ours.dtype) == (cpu, torch.float32)
