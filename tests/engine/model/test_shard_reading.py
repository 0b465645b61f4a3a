"""A stage reads its own tensors and no others, and never holds much more than them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.model.loader import EMBED, HEAD, load_shard
from engine.model.ranges import LayerRange, split_layers
from engine.model.weights.tensor_file import Place, TensorFile
from engine.model.weights.tensors import INDEX
from tests.support.tiny_models import tiny_model

CPU = torch.device("cpu")

Read = list[tuple[str, int]]  # names and bytes


class Calls:
    """What the kernel was asked for."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.reads: list[tuple[int, int]] = []  # byte of the file, and how many


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """What is read from now on. The bytes are counted where the kernel is asked for them, too."""
    seen: Read = []

    place = TensorFile.place

    def seen_place(file: TensorFile, name: str) -> Place:
        found = place(file, name)
        seen.append((name, found.n_bytes))
        return found

    monkeypatch.setattr(TensorFile, "place", seen_place)
    return seen


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Weight files that are opened, and bytes that are read of them, from now on."""
    found = Calls()
    path_open, preadv = Path.open, os.preadv

    def opened(path: Path, *args: Any, **kwargs: Any) -> Any:
        found.opened += [path.name] * (path.suffix == ".safetensors")
        return path_open(path, *args, **kwargs)

    def counted(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        n = preadv(descriptor, buffers, offset)
        found.reads.append((offset, n))
        return n

    monkeypatch.setattr(Path, "open", opened)
    monkeypatch.setattr(os, "preadv", counted)
    return found


def belongs(name: str, layers: LayerRange, tied: bool) -> bool:
    if name.startswith("model.layers."):
        return layers.first <= int(name.split(".")[2]) < layers.last
    if name == EMBED:
        return layers.is_first or (tied and layers.is_last)
    return layers.is_last


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("qwen3", True)])
@pytest.mark.parametrize("size", ["1GB", "8KB"])
@pytest.mark.parametrize("n_stages", [1, 3, 4])
def test_a_stage_reads_each_of_its_tensors_once_and_no_other(
    n_stages: int,
    size: str,
    family: str,
    tied: bool,
    quantization: str | None,
    tmp_path: Path,
    read: Read,
) -> None:
    tiny_model(family).save_pretrained(tmp_path, max_shard_size=size)
    stored = {
        name: weight.nbytes for file in tmp_path.glob("*.safetensors") for name, weight in load_file(file).items()
    }
    assert (HEAD in stored) != tied
    for layers in split_layers(4, n_stages):
        read.clear()
        load_shard(tmp_path, layers, dtype=torch.float32, device=CPU, n_positions=8, quantization=quantization)
        assert sorted(read) == sorted(one for one in stored.items() if belongs(one[0], layers, tied))


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("size", ["1GB", "8KB"])
def test_every_file_is_opened_once_and_every_byte_read_once(
    size: str, quantization: str | None, tmp_path: Path, calls: Calls
) -> None:
    tiny_model("llama").save_pretrained(tmp_path, max_shard_size=size)
    files = sorted(file.name for file in tmp_path.glob("*.safetensors"))
    stored = sum(weight.nbytes for name in files for weight in load_file(tmp_path / name).values())
    whole = LayerRange(0, 4, 4)
    load_shard(tmp_path, whole, dtype=torch.bfloat16, device=CPU, n_positions=8, quantization=quantization)
    assert sorted(calls.opened) == files
    assert sum(n for _, n in calls.reads) == stored


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_the_files_of_other_stages_need_not_exist(quantization: str | None, tmp_path: Path) -> None:
    for layers in split_layers(4, 4):
        path = tmp_path / str(layers.first)
        tiny_model("llama").save_pretrained(path, max_shard_size="8KB")
        files = json.loads((path / INDEX).read_text())["weight_map"]
        needed = {file for name, file in files.items() if belongs(name, layers, tied=False)}
        for file in set(files.values()) - needed:
            (path / file).unlink()
        assert 0 < len(needed) < len(set(files.values()))
        shard = load_shard(path, layers, dtype=torch.float32, device=CPU, n_positions=8, quantization=quantization)
        assert not any(weight.is_meta for layer in shard.layers for weight in layer.parameters())


PEAK = """
import sys
from pathlib import Path
import torch
from engine.model.loader import load_shard
from engine.model.ranges import LayerRange
from engine.model.weights import reader

reader.READERS, reader.PIECE = int(sys.argv[3]), int(sys.argv[4])

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

def load(path, first, last, dtype, quantization):
    return load_shard(Path(path), LayerRange(first, last, 8), dtype=dtype, device=torch.device("cpu"), n_positions=8,
                      quantization=quantization)

torch.set_num_threads(1)
for dtype, quantization in ((torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, "int8")):
    load(sys.argv[2], 0, 8, dtype, quantization)  # what loading anything costs once
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    shard = load(sys.argv[1], 2, 4, dtype, quantization)
    kept = sum(one.nbytes for layer in shard.layers for one in [*layer.parameters(), *layer.buffers()])
    print(memory("VmHWM") - before, kept)
    del shard
"""
HIDDEN = 640
N_READERS, AT_ONCE = 4, 1 << 20
SLACK = 12 << 20  # bytes: what quantising some rows takes, and the allocator


def checkpoint_of(path: Path, hidden: int) -> None:
    """A random float32 Llama of eight layers, made layer by layer in one file each; of 640, 200 MB."""
    path.mkdir()
    config = {
        "model_type": "llama", "vocab_size": 512, "hidden_size": hidden, "intermediate_size": 4 * hidden,
        "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "tie_word_embeddings": False,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    index: dict[str, str] = {}
    parts = {"self_attn.q_proj": (1, 1), "self_attn.k_proj": (1, 1), "self_attn.v_proj": (1, 1)}
    parts |= {"self_attn.o_proj": (1, 1), "mlp.gate_proj": (4, 1), "mlp.up_proj": (4, 1), "mlp.down_proj": (1, 4)}
    for layer in range(8):
        own = {
            f"model.layers.{layer}.{name}.weight": torch.randn(rows * hidden, columns * hidden)
            for name, (rows, columns) in parts.items()
        }
        for norm in ("input_layernorm", "post_attention_layernorm"):
            own[f"model.layers.{layer}.{norm}.weight"] = torch.ones(hidden)
        save_file(own, path / f"{layer}.safetensors")
        index |= dict.fromkeys(own, f"{layer}.safetensors")
    ends = {EMBED: torch.randn(512, hidden), HEAD: torch.randn(512, hidden), "model.norm.weight": torch.ones(hidden)}
    save_file(ends, path / "ends.safetensors")
    index |= dict.fromkeys(ends, "ends.safetensors")
    (path / INDEX).write_text(json.dumps({"weight_map": index}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("size", ["1GB", "8KB"])
@pytest.mark.parametrize("n_stages", [1, 3])
def test_every_weight_of_every_stage_is_what_the_library_reads(
    n_stages: int, size: str, family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    tiny_model(family).save_pretrained(tmp_path, max_shard_size=size)
    stored = {name: weight for file in tmp_path.glob("*.safetensors") for name, weight in load_file(file).items()}
    seen = set()
    for layers in split_layers(4, n_stages):
        shard = load_shard(tmp_path, layers, dtype=dtype, device=CPU, n_positions=8)
        found = {
            f"model.layers.{layers.first + i}.{name}": weight
            for i, layer in enumerate(shard.layers)
            for name, weight in layer.named_parameters()
        }
        for name, module in ((EMBED, shard._embed), ("model.norm.weight", shard._norm), (HEAD, shard._head)):
            if module is not None:
                [found[name]] = module.parameters()
        for name, weight in found.items():
            assert torch.equal(weight, stored[name if name in stored else EMBED].to(dtype)), name
        seen |= found.keys()
    assert seen >= stored.keys()


def test_a_stage_never_holds_much_more_than_its_own_weights(tmp_path: Path) -> None:
    whole, small = tmp_path / "whole", tmp_path / "small"
    checkpoint_of(whole, HIDDEN)
    checkpoint_of(small, 8)
    total = sum(file.stat().st_size for file in whole.glob("*.safetensors"))
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(whole), str(small), str(N_READERS), str(AT_ONCE)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"},  # what is freed is given back
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = [[int(part) for part in line.split()] for line in done.stdout.splitlines()]
    full, half, int8 = (kept for _, kept in rows)
    assert full == 2 * half > 3.9 * int8
    for peak, kept in rows:
        assert peak < kept + N_READERS * AT_ONCE + SLACK
        assert peak < total / 2
    assert rows[1][0] > half  # the measurement measures
