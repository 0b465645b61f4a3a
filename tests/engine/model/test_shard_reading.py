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
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from engine.model.checkpoint_files import INDEX
from engine.model.loader import EMBED, HEAD, load_shard
from engine.model.ranges import LayerRange, split_layers
from engine.model.weights.files import TensorFile, TensorLocation
from tests.support.tiny_models import tiny_model

CPU = torch.device("cpu")


def belongs(name: str, layers: LayerRange, tied: bool) -> bool:
    if name.startswith("model.layers."):
        return layers.first <= int(name.split(".")[2]) < layers.last
    if name == EMBED:
        return layers.is_first or (tied and layers.is_last)
    return layers.is_last


@pytest.mark.parametrize(
    ("n_stages", "size", "family", "quantization"),
    [(1, "8KB", "qwen3", None), (3, "1GB", "llama", "int8"), (4, "8KB", "llama", None), (3, "8KB", "qwen3", "int8")],
)
def test_a_stage_reads_each_of_its_tensors_once_and_no_other(
    n_stages: int, size: str, family: str, quantization: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By names, and by bytes where the kernel is asked for them."""
    read: list[tuple[str, int]] = []
    n_bytes: list[int] = []
    place, preadv = TensorFile.locate, os.preadv

    def seen_place(file: TensorFile, name: str) -> TensorLocation:
        read.append((name, place(file, name).n_bytes))
        return place(file, name)

    def seen_preadv(*arguments: Any) -> int:
        n_bytes.append(preadv(*arguments))
        return n_bytes[-1]

    monkeypatch.setattr(TensorFile, "locate", seen_place)
    monkeypatch.setattr(os, "preadv", seen_preadv)
    tiny_model(family).save_pretrained(tmp_path, max_shard_size=size)
    stored = {
        name: weight.nbytes for file in tmp_path.glob("*.safetensors") for name, weight in load_file(file).items()
    }
    assert (HEAD in stored) == (family == "llama")
    for layers in split_layers(4, n_stages):
        read.clear()
        n_bytes.clear()
        load_shard(tmp_path, layers, dtype=torch.float32, device=CPU, n_positions=8, quantization=quantization)
        own = sorted(one for one in stored.items() if belongs(one[0], layers, tied=HEAD not in stored))
        assert sorted(read) == own
        assert sum(n_bytes) == sum(n for _, n in own)


def test_the_files_of_other_stages_need_not_exist(tmp_path: Path) -> None:
    for layers in split_layers(4, 4):
        path = tmp_path / str(layers.first)
        tiny_model("llama").save_pretrained(path, max_shard_size="8KB")
        files = json.loads((path / INDEX).read_text())["weight_map"]
        needed = {file for name, file in files.items() if belongs(name, layers, tied=False)}
        for file in set(files.values()) - needed:
            (path / file).unlink()
        assert 0 < len(needed) < len(set(files.values()))
        shard = load_shard(path, layers, dtype=torch.float32, device=CPU, n_positions=8)
        assert not any(weight.is_meta for layer in shard.layers for weight in layer.parameters())


PEAK = """
import sys
from pathlib import Path
import torch
from engine.model.loader import load_shard
from engine.model.ranges import LayerRange
from engine.model.weights import reader

reader.READERS, reader.READ_BYTES = int(sys.argv[3]), int(sys.argv[4])

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

def load(path, first, last, dtype, quantization):
    return load_shard(Path(path), LayerRange(first, last, 8), dtype=dtype, device=torch.device("cpu"), n_positions=8,
                      quantization=quantization)

torch.set_num_threads(1)
for dtype, quantization in ((torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, "int8")):
    load(sys.argv[2], 0, 8, dtype, quantization)  # imports and buffers that any load needs
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory("VmRSS")
    shard = load(sys.argv[1], 2, 4, dtype, quantization)
    kept = sum(one.nbytes for layer in shard.layers for one in [*layer.parameters(), *layer.buffers()])
    print(memory("VmHWM") - before, kept)
    del shard
"""
N_READERS, AT_ONCE = 4, 1 << 20
SLACK = 12 << 20  # bytes for the rows that are being quantised, and for the allocator


@pytest.mark.matrix
def test_a_stage_never_holds_much_more_than_its_own_weights(tmp_path: Path) -> None:
    whole, small = tmp_path / "whole", tmp_path / "small"
    for path, hidden in ((whole, 640), (small, 8)):  # 200 MB, and next to nothing
        config = LlamaConfig(
            vocab_size=512, hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=8, num_attention_heads=8
        )
        LlamaForCausalLM(config).save_pretrained(path, max_shard_size="26MB")
    total = sum(file.stat().st_size for file in whole.glob("*.safetensors"))
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(whole), str(small), str(N_READERS), str(AT_ONCE)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"},  # freed memory is returned
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = [[int(part) for part in line.split()] for line in done.stdout.splitlines()]
    full, half, int8 = (kept for _, kept in rows)
    assert full == 2 * half > 3.9 * int8
    for peak, kept in rows:
        assert peak < kept + N_READERS * AT_ONCE + SLACK
        assert peak < total / 2
    assert rows[1][0] > half  # the measurement sees weights
