"""A rank loads its share of a stage's weights, with the numbers that the whole weights have there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import device
from engine.errors import ConfigError
from engine.model.exchange import GatheredLinear, Ranks, ShardedHead, SummedLinear
from engine.model.gguf import folder as folders
from engine.model.loader import load_config, load_shard, load_spec
from engine.model.ranges import LayerRange
from engine.model.resolve import resolve
from engine.model.shard import ModelShard
from engine.model.share import RankShare
from engine.model.sizes import weight_bytes
from engine.model.weights import reader
from engine.model.weights.meter import Meter
from tests.support import gguf_files
from tests.support.fp8_checkpoints import fp8_checkpoint, int8_checkpoint
from tests.support.tiny_models import FAMILIES, saved_model

SUMMED = ("o_proj", "down_proj")
SPLIT = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", *SUMMED, "lm_head")


def load(path: Path, rank: int = 0, size: int = 1, layers: LayerRange | None = None, **others: Any) -> ModelShard:
    spec = load_spec(path)
    ranks = Ranks(RankShare(rank, size), spec) if size > 1 else None
    given: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu"), "n_positions": 8, "ranks": ranks}
    return load_shard(path, layers or LayerRange(0, spec.n_layers, spec.n_layers), **given | others)


def state(shard: ModelShard) -> dict[str, Tensor]:
    """Weights, scales and biases by their names without ranks; fp8 as fp32, which torch can compare."""
    modules = {str(i): layer for i, layer in enumerate(shard.layers)}
    modules |= {"embed": shard.embedding, "norm": shard.final_norm, "lm_head": shard.head_module}
    found = torch.nn.ModuleDict(modules).state_dict()
    plain = {name: name.replace(".linear.", ".").replace(".experts.experts.", ".experts.") for name in found}
    return {plain[name]: tensor.float() for name, tensor in found.items()}


def joined(name: str, parts: Sequence[Tensor], n_kv_heads: int, is_gathered: bool) -> Tensor:
    """The whole tensor of the parts of all ranks."""
    owner, kind = name.split(".")[-2:]
    if ".experts." in name:
        [alone] = parts
        return alone
    is_summed = owner in SUMMED and not is_gathered
    if owner not in SPLIT or (is_summed and kind != "weight"):
        assert all(torch.equal(part, parts[0]) for part in parts), name
        return parts[0]
    repeats = max(1, len(parts) // n_kv_heads) if owner in ("k_proj", "v_proj") else 1
    for part, first in zip(parts, range(len(parts)), strict=True):
        assert torch.equal(part, parts[first // repeats * repeats]), "ranks that share a key head"
    return torch.cat([*parts[::repeats]], dim=1 if is_summed else 0)


def check_parts(path: Path, size: int, is_gathered: bool = False, **others: Any) -> None:
    spec, whole = load_spec(path), state(load(path, **others))
    shards = [load(path, rank, size, **others) for rank in range(size)]
    parts = [state(shard) for shard in shards]
    assert all(part.keys() <= whole.keys() for part in parts)
    assert len({len(part) for part in parts}) == 1, "all have as many experts"
    for name, expected in whole.items():
        found = joined(name, [part[name] for part in parts if name in part], spec.n_kv_heads, is_gathered)
        if name == "lm_head.weight":
            assert len({len(part[name]) for part in parts}) == 1
            assert not found[spec.vocab_size :].any(), "padding"
            found = found[: spec.vocab_size]
        assert torch.equal(found, expected), name
    for shard in shards:
        assert (shard.spec.n_heads, shard.spec.n_kv_heads) == (spec.n_heads // size, max(1, spec.n_kv_heads // size))
        assert type(shard.head_module) is ShardedHead
        outputs = [module for module in torch.nn.ModuleList(shard.layers).modules() if type(module) is torch.nn.Linear]
        assert all(tuple(one.weight.shape) == (one.out_features, one.in_features) for one in outputs)
        kind = GatheredLinear if is_gathered else SummedLinear
        names = ["self_attn.o_proj", *([] if spec.n_experts else ["mlp.down_proj"])]
        assert all(type(layer.get_submodule(name)) is kind for layer in shard.layers for name in names)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_parts_of_all_ranks_are_the_whole_weights(family: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "READ_BYTES", 1000)  # reads end within matrices
    check_parts(saved_model(family), size, dtype=torch.float32 if size == 2 else torch.bfloat16)


@pytest.mark.parametrize(
    ("family", "quantization", "make"),
    [
        ("llama", None, lambda family, folder: fp8_checkpoint(family, folder, "channel")),
        ("gemma3", None, lambda family, folder: fp8_checkpoint(family, folder, "tensor")),
        ("qwen2", None, int8_checkpoint),
        ("qwen3", "fp8", None),
        ("mistral", "int8", None),
    ],
    ids=["stored fp8, channel", "stored fp8, tensor", "stored int8", "made fp8", "made int8"],
)
@pytest.mark.parametrize("on_gpu", [False, True])
def test_the_parts_of_one_byte_weights_have_the_scales_of_whole_rows(
    family: str,
    quantization: str | None,
    make: Callable[[str, Path], Path] | None,
    on_gpu: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if on_gpu:  # decides how int8 runs
        monkeypatch.setattr(device, "is_host", lambda _: False)
    path = saved_model(family) if make is None else make(family, tmp_path / "stored")
    is_int8 = quantization == "int8" or make is int8_checkpoint
    check_parts(path, 4, is_int8 and not on_gpu, quantization=quantization)


@pytest.mark.parametrize(
    ("family", "kind", "quantization", "size"),
    [("llama", "Q4_K", None, 4), ("mistral", "Q6_K", None, 2), ("qwen2", "Q8_0", "int8", 4), ("qwen3", "Q5_K", None, 4),
     ("gemma3_text", "BF16", "fp8", 2)],
)  # fmt: skip
def test_ranks_read_gguf_files(
    family: str, kind: str, quantization: str | None, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(folders, "KEPT_BYTES", 0)
    monkeypatch.setattr(reader, "READ_BYTES", 5000)
    gguf_files.write_gguf(tmp_path / "model.gguf", family, kind)
    check_parts(resolve(str(tmp_path / "model.gguf")), size, quantization == "int8", quantization=quantization)


def test_a_rank_reads_only_its_rows_and_maps_them() -> None:
    path, layers = saved_model("llama"), LayerRange(2, 4, 4)
    meters = [Meter() for _ in range(5)]
    load(path, layers=layers, meter=meters[4])
    for rank, meter in enumerate(meters[:4]):
        shard = load(path, rank, 4, layers, meter=meter)
        storages = {one.untyped_storage().data_ptr() for one in torch.nn.ModuleList(shard.layers).parameters()}
        assert len(storages) == 1 + 2 * 2, "the file, and the columns of two matrices of each of two layers"
    columns = 2 * (32 * 32 + 32 * 48) * 4  # of two layers
    keys = 2 * 2 * 2 * 8 * 32 * 4  # keys and values of two layers, two heads of 8 numbers, of which each rank has one
    norms = 5 * 32 * 4
    rows = meters[4].n_bytes - columns - norms
    assert sum(meter.n_bytes for meter in meters[:4]) == rows + keys + 4 * (columns + norms)


def test_a_tied_head_is_a_view_of_the_embedding() -> None:
    path = saved_model("qwen3")
    first, last = (load(path, rank, 2, dtype=torch.bfloat16) for rank in (0, 1))
    head, embedding = first.head_module.linear.weight, first.embedding.weight  # type: ignore[union-attr]
    assert head.data_ptr() == embedding.data_ptr()  # type: ignore[operator]
    assert len(last.head_module.linear.weight) == 49  # type: ignore[union-attr, arg-type]
    alone = load(path, 1, 2, LayerRange(3, 4, 4), dtype=torch.bfloat16)  # reads its rows of the embedding
    assert torch.equal(alone.head_module.linear.weight, last.head_module.linear.weight)  # type: ignore
    with pytest.raises(AssertionError, match="no embedding"):
        alone.embed(torch.tensor([3]))


@pytest.mark.parametrize(
    ("family", "size", "quantization"),
    [("llama", 4, "fp8"), ("qwen2", 2, None), ("qwen3", 2, None), ("gemma3", 4, None)],
)
def test_planned_bytes_are_those_of_the_leader(family: str, size: int, quantization: str | None) -> None:
    path = saved_model(family)
    config, spec = load_config(path), load_spec(path)
    planned = weight_bytes(config, spec, torch.bfloat16, quantization, RankShare(0, size))
    for first, last in ((0, 4), (0, 1), (2, 4)):
        shard = load(path, 0, size, LayerRange(first, last, 4), dtype=torch.bfloat16, quantization=quantization)
        modules = [*shard.layers, *(one for one in (shard._embed, shard._norm, shard._head) if one is not None)]
        sizes: dict[int, int] = {}
        for tensor in (one for module in modules for one in (*module.parameters(), *module.buffers())):
            if tensor.ndim > 0:  # Gemma's embedding scales by a number
                storage = tensor.untyped_storage().data_ptr()  # a tied head is counted once
                sizes[storage] = max(sizes.get(storage, 0), tensor.nbytes)
        assert sum(sizes.values()) == planned.of(first, last)


def test_int8_on_a_cpu_needs_a_hidden_size_that_the_ranks_can_share() -> None:
    path = saved_model("llama")
    ranks = Ranks(RankShare(0, 5), load_spec(path))
    with pytest.raises(ConfigError, match="tensor_parallel is 5; with int8 on a CPU it must divide hidden_size, 32"):
        load_shard(
            path,
            LayerRange(0, 4, 4),
            dtype=torch.float32,
            device=torch.device("cpu"),
            n_positions=8,
            quantization="int8",
            ranks=ranks,
        )
