"""A checkpoint of random weights on a disk, and how long it takes to have some of its layers on a device."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from benchmarks.gpu.measuring.models import Geometry
from engine.model.checkpoint_files import INDEX
from engine.model.loader import load_shard
from engine.model.ranges import LayerRange
from engine.model.weights import reader

PAGE = 4096  # bytes


def write_checkpoint(folder: Path, geometry: Geometry) -> int:
    """Random weights in bf16, a file for each layer; returns their bytes."""
    folder.mkdir(parents=True)
    config = {
        "model_type": "llama", "torch_dtype": "bfloat16", "tie_word_embeddings": False, "vocab_size": geometry.vocab,
        "hidden_size": geometry.hidden, "intermediate_size": geometry.intermediate, "head_dim": geometry.head_dim,
        "num_hidden_layers": geometry.n_layers, "num_attention_heads": geometry.n_heads,
        "num_key_value_heads": geometry.n_kv_heads,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    keys, queries = geometry.n_kv_heads * geometry.head_dim, geometry.n_heads * geometry.head_dim
    attention = {"q_proj": (queries, geometry.hidden), "k_proj": (keys, geometry.hidden)}
    attention |= {"v_proj": (keys, geometry.hidden), "o_proj": (geometry.hidden, queries)}
    wide, narrow = (geometry.intermediate, geometry.hidden), (geometry.hidden, geometry.intermediate)
    shapes: dict[str, tuple[int, ...]] = {f"self_attn.{name}": shape for name, shape in attention.items()}
    shapes |= {"mlp.gate_proj": wide, "mlp.up_proj": wide, "mlp.down_proj": narrow}
    shapes |= {"input_layernorm": (geometry.hidden,), "post_attention_layernorm": (geometry.hidden,)}
    head = (geometry.vocab, geometry.hidden)
    ends: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": head, "lm_head": head, "model.norm": (geometry.hidden,)
    }  # fmt: skip
    index: dict[str, str] = {}
    for number in range(geometry.n_layers + 1):
        named = ends if number == geometry.n_layers else {f"model.layers.{number}.{k}": v for k, v in shapes.items()}
        made = {f"{name}.weight": _random(shape) for name, shape in named.items()}
        save_file(made, folder / f"{number}.safetensors", {"format": "pt"})
        index |= dict.fromkeys(made, f"{number}.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": index}))
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _random(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16).random_(-100, 100).mul_(1e-3)


def forget(folder: Path) -> None:
    """Have the system give the pages of a checkpoint's files up, as far as no process maps them."""
    for file in folder.glob("*.safetensors"):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def seconds_ours(
    folder: Path, layers: LayerRange, device: torch.device, dtype: torch.dtype, n_readers: int = reader.READERS
) -> float:
    """With the loader of a stage, until every page of every weight has been touched."""
    before, reader.READERS = reader.READERS, n_readers
    began = time.perf_counter()
    try:
        shard = load_shard(folder, layers, dtype=dtype, device=device, n_positions=128)
    finally:
        reader.READERS = before
    _touch(list(_weights([*shard.layers, shard._embed, shard._norm, shard._head])), device)
    return time.perf_counter() - began


def seconds_library(folder: Path, layers: LayerRange, device: torch.device, dtype: torch.dtype) -> float:
    """With safetensors' own reader, tensor by tensor in the order of each file, likewise."""
    index: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
    began = time.perf_counter()
    held = []
    for name in sorted(set(index.values())):
        with safe_open(folder / name, "pt", device=str(device)) as file:
            held += [file.get_tensor(one).to(dtype) for one in file.keys() if _belongs(one, layers)]  # noqa: SIM118
    _touch(held, device)
    return time.perf_counter() - began


def _belongs(name: str, layers: LayerRange) -> bool:
    if name.startswith("model.layers."):
        return layers.first <= int(name.split(".")[2]) < layers.last
    return layers.is_first if name.startswith("model.embed") else layers.is_last


def _weights(modules: list[nn.Module | None]) -> Iterator[torch.Tensor]:
    for module in modules:
        if module is not None:
            yield from module.parameters()


def _touch(weights: list[torch.Tensor], device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return
    for weight in weights:
        weight.detach().view(-1).view(torch.uint8)[::PAGE].sum()


@contextmanager
def far(seconds: float) -> Iterator[None]:
    """Every read of a weight file by ``seconds_ours`` waits so long before it begins, as for storage that is far."""
    preadv = os.preadv

    def late(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        time.sleep(seconds)
        return preadv(descriptor, buffers, offset)

    if seconds:
        os.preadv = late  # type: ignore[assignment]
    try:
        yield
    finally:
        os.preadv = preadv
