"""A stage reads its own tensors and no others, and never holds much more than them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import UnsupportedModelError
from engine.model import tensor_file, tensors
from engine.model.loader import EMBED, HEAD, load_shard
from engine.model.ranges import LayerRange, split_layers
from engine.model.tensor_file import TensorFile
from tests.support.tiny_models import tiny_model

CPU = torch.device("cpu")

Read = list[tuple[str, int]]  # names and bytes


class Calls:
    """What the kernel was asked for."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.sizes: list[int] = []


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """What is read from now on. The bytes are counted where the kernel is asked for them, too."""
    seen: Read = []

    class Counted(TensorFile):
        def read(self, name: str, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
            first, last = self._places[name].data_offsets
            seen.append((name, last - first))
            return super().read(name, device, dtype)

    monkeypatch.setattr(tensors, "TensorFile", Counted)
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
        found.sizes.append(n)
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
    assert sum(calls.sizes) == stored


STORED = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.bool, torch.int64)


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16], ids=str)
def test_a_tensor_is_what_the_library_reads_whichever_pieces_it_comes_in(
    dtype: torch.dtype | None, stored: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    monkeypatch.setattr(tensor_file, "PIECE", 64)
    torch.manual_seed(1)
    shapes = {"matrix": (7, 5), "row": (8,), "number": (), "none": (0, 3), "large": (3, 64)}
    path = tmp_path / "w.safetensors"
    save_file({name: (10 * torch.randn(shape)).to(stored) for name, shape in shapes.items()}, path, {"format": "pt"})
    wanted, file = load_file(path), TensorFile(path)
    assert sorted(file.names) == sorted(wanted)
    for name, tensor in wanted.items():
        found = file.read(name, CPU, dtype)
        assert found.dtype == (dtype or stored)
        assert found.shape == tensor.shape
        assert torch.equal(found, tensor.to(found.dtype))
    assert dtype in (None, stored) or max(calls.sizes) <= 64
    file.close()


def test_a_damaged_file_is_refused_and_named(tmp_path: Path) -> None:
    def written(header: Any, n_bytes: int = 16) -> Path:
        raw = header if isinstance(header, bytes) else json.dumps(header).encode()
        path = tmp_path / "w.safetensors"
        path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(n_bytes))
        return path

    for headless in (b"", b"{", b"\xff{}", b"[1]", {"w": 3}, {"w": {"dtype": "F32"}}):
        with pytest.raises(UnsupportedModelError, match=r"w\.safetensors cannot be loaded: .* header"):
            TensorFile(written(headless))
    place: dict[str, Any] = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    wrong = {"has 16 bytes": {"shape": [5]}, "dtype F4": {"dtype": "F4"}, "has 32": {"data_offsets": [-16, 16]}}
    for told, change in wrong.items():
        with (
            closing(TensorFile(written({"w": place | change}))) as file,
            pytest.raises(UnsupportedModelError, match=told),
        ):
            file.read("w", CPU)
    with closing(TensorFile(written({"w": place}, 15))) as file:
        with pytest.raises(UnsupportedModelError, match=r"w\.safetensors is cut short"):
            file.read("w", CPU, torch.bfloat16)
        with pytest.raises(UnsupportedModelError, match="lacks the tensor 'v'"):
            file.read("v", CPU)


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_the_files_of_other_stages_need_not_exist(quantization: str | None, tmp_path: Path) -> None:
    for layers in split_layers(4, 4):
        path = tmp_path / str(layers.first)
        tiny_model("llama").save_pretrained(path, max_shard_size="8KB")
        files = json.loads((path / tensors.INDEX).read_text())["weight_map"]
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
MATRIX = HIDDEN * HIDDEN * 4 * 4  # bytes of the largest tensor of a layer in float32


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
    (path / tensors.INDEX).write_text(json.dumps({"weight_map": index}))


def test_a_stage_never_holds_much_more_than_its_own_weights(tmp_path: Path) -> None:
    whole, small = tmp_path / "whole", tmp_path / "small"
    checkpoint_of(whole, HIDDEN)
    checkpoint_of(small, 8)
    total = sum(file.stat().st_size for file in whole.glob("*.safetensors"))
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(whole), str(small)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"},  # what is freed is given back
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = [[int(part) for part in line.split()] for line in done.stdout.splitlines()]
    full, half, int8 = (kept for _, kept in rows)
    assert full == 2 * half > 3.9 * int8
    for peak, kept in rows:
        assert peak < kept + MATRIX + (12 << 20)  # one tensor as it is stored, and what quantising some rows takes
        assert peak < total / 2
    assert rows[1][0] > half  # the measurement measures
