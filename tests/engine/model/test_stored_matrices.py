"""Stored matrices whose checkpoint has more or less than the config says, and the memory that they take."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine import device
from engine.errors import UnsupportedModelError
from engine.model import weight_requests
from engine.model.checkpoint_files import CONFIG, SINGLE
from engine.model.exchange import Ranks
from engine.model.loader import check_weights, load_config, load_shard, load_spec
from engine.model.matrices.groups import GroupedLinear
from engine.model.matrices.linears import ScaledLinear
from engine.model.ranges import LayerRange
from engine.model.shard import ModelShard
from engine.model.share import RankShare
from engine.model.sizes import weight_bytes
from engine.model.spec import read_spec
from engine.model.weights import tensors as weight_tensors
from engine.model.weights.meter import Meter
from engine.model.weights.sinks import CopySink
from engine.model.weights.tensors import CheckpointTensors
from tests.support.quantized_checkpoints import FORMATS, quantized_checkpoint

Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]
ROUTER, LM_HEAD = "model.layers.0.mlp.gate.weight", "lm_head.weight"


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU passes for a GPU, which keeps numbers in memory."""
    monkeypatch.setattr(device, "is_host", lambda _: False)


def load(path: Path, ranks: Ranks | None = None) -> ModelShard:
    cpu, layers = torch.device("cpu"), LayerRange(0, 2, 2)
    return load_shard(path, layers, dtype=torch.float32, device=cpu, n_positions=8, ranks=ranks)


def state(shard: ModelShard) -> dict[str, Tensor]:
    return nn.ModuleList(shard.layers).state_dict()


def edit(path: Path, change: Change) -> None:
    """Change the tensors of a checkpoint."""
    changed = {key: value.contiguous() for key, value in change(load_file(path / SINGLE)).items()}
    save_file(changed, path / SINGLE, {"format": "pt"})


def quantize_more(form: str, *names: str) -> Change:
    """Store other weights as the format stores matrices."""

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        for name in names:
            owner, parts = name.removesuffix(".weight"), FORMATS[form].store(tensors.pop(name).float())
            tensors |= {f"{owner}.{last}": part for last, part in parts.items()}
        return tensors

    return change


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("form", ["gptq asymmetric", "int8 channel"])
def test_quantised_routers_and_heads_are_dequantised(form: str, tmp_path: Path) -> None:
    path = quantized_checkpoint("qwen3_moe", tmp_path / "stored", form)
    plain = load_file(path / SINGLE)
    edit(path, quantize_more(form, ROUTER, LM_HEAD))
    check_weights(path)
    shard = load(path)
    router: Any = shard.layers[0].mlp.gate  # type: ignore[union-attr]
    for name, found in ((ROUTER, router.weight), (LM_HEAD, shard.head_module.weight)):
        error = (found - plain[name]).norm() / plain[name].norm()
        assert 0 < error < 0.15, name


def test_integers_without_scales_are_refused(tmp_path: Path) -> None:
    path = quantized_checkpoint("llama", tmp_path / "stored", "int8 channel")
    name = "model.layers.0.mlp.up_proj.weight"
    edit(path, lambda tensors: {key: value for key, value in tensors.items() if key != f"{name}_scale"})
    for read in (load, check_weights):
        with pytest.raises(UnsupportedModelError, match=f"'{name}' in .* is int8 without a scale"):
            read(path)


def test_a_missing_tensor_of_a_matrix_is_named(tmp_path: Path) -> None:
    path = quantized_checkpoint("llama", tmp_path / "stored", "awq 32")
    name = "model.layers.0.mlp.up_proj.qzeros"
    edit(path, lambda tensors: {key: value for key, value in tensors.items() if key != name})
    for read in (load, check_weights):
        with pytest.raises(UnsupportedModelError, match=f"lacks the tensor '{name}'"):
            read(path)


def test_numbers_of_another_dtype_are_refused(tmp_path: Path) -> None:
    path = quantized_checkpoint("llama", tmp_path / "stored", "fp8 block")
    name = "model.layers.0.mlp.up_proj.weight"
    edit(path, lambda tensors: tensors | {name: tensors[name].view(torch.int8)})
    for read in (load, check_weights):
        with pytest.raises(UnsupportedModelError, match=f"'{name}' in .* the dtype int8, .* needs .* float8_e4m3fn"):
            read(path)


def test_the_former_name_of_the_config_means_the_same(tmp_path: Path) -> None:
    path = quantized_checkpoint("llama", tmp_path / "stored", "int4 32")
    expected, config = state(load(path)), json.loads((path / CONFIG).read_text())
    config["compression_config"] = config.pop("quantization_config") | {"sparsity_config": {"format": "dense"}}
    (path / CONFIG).write_text(json.dumps(config))
    found = state(load(path))
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_matrices_are_converted_before_all_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = quantized_checkpoint("qwen2", tmp_path / "stored", "awq 32")
    expected, reads, read = state(load(path)), list[int](), CheckpointTensors.read

    def counted(tensors: CheckpointTensors, meter: Meter) -> None:
        reads.append(tensors.requested_bytes)
        read(tensors, meter)

    monkeypatch.setattr(CheckpointTensors, "read", counted)
    monkeypatch.setattr(weight_requests, "MOST_BYTES", 20_000)
    found = state(load(path))
    assert len(reads) > 3
    assert max(reads) < sum(reads) / 2
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("form", ["fp8 channel", "fp8 block inverse", "int8 128 asymmetric", "awq 128", "gptq"])
def test_a_rank_does_not_keep_the_memory_of_whole_matrices(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_tensors, "load_sink", CopySink)  # nothing is mapped from files
    path = quantized_checkpoint("llama", tmp_path / "stored", form)
    kept: list[Tensor | None] = []
    for module in nn.ModuleList(load(path, Ranks(RankShare(1, 2), load_spec(path))).layers).modules():
        if isinstance(module, GroupedLinear):
            kept += [module.weight, module.groups.scales, module.groups.zeros]
        elif isinstance(module, ScaledLinear):
            kept += [module.weight, module.output_scales]
    assert kept
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in kept if tensor is not None)


@pytest.mark.usefixtures("on_gpu")
def test_planned_bytes_count_matrices_that_the_checkpoint_leaves_plain(tmp_path: Path) -> None:
    path = quantized_checkpoint("qwen3", tmp_path / "stored", "fp8 block inverse")
    config = load_config(path)

    def planned(*names: str) -> tuple[float, ...]:
        changed = copy.deepcopy(config)
        changed.quantization_config |= {"modules_to_not_convert": names}
        return weight_bytes(changed, read_spec(config), torch.float32).layers

    whole, one = planned(), planned("model.layers.1.self_attn.o_proj")
    n_out, n_in = load(path).layers[1].self_attn.o_proj.weight.shape  # type: ignore[union-attr]
    quantised = n_out * -(-n_in // 128) * (128 + 4)
    assert (one[0], one[1] - whole[1]) == (whole[0], 4 * n_out * n_in - quantised)
    assert planned("self_attn", "lm_head")[0] > one[1]
    assert planned("re:.*o_proj") == planned("*.o_proj") == (one[1], one[1])
