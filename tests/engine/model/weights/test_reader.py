"""Tensors are what the library reads, whatever they become; and what goes wrong with a disk is told with the file."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import UnsupportedModelError
from engine.model.quantized import quantize
from engine.model.weights import reader
from engine.model.weights.meter import Meter
from engine.model.weights.tensor_file import TensorFile
from engine.model.weights.tensors import INDEX, CheckpointTensors, read_file

CPU = torch.device("cpu")
STORED = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.bool, torch.int64)
SHAPES = {"matrix": (7, 5), "row": (8,), "number": (), "none": (0, 3), "large": (3, 64), "odd": (3,)}

Reads = list[tuple[str, int, int]]  # file, byte of it, bytes


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """What the kernel is asked for from now on, by one reader."""
    seen: Reads = []
    preadv = os.preadv

    def counted(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        n = preadv(descriptor, buffers, offset)
        seen.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, offset, n))
        return n

    monkeypatch.setattr(os, "preadv", counted)
    monkeypatch.setattr(reader, "READERS", 1)
    return seen


def saved(path: Path, dtype: torch.dtype, prefix: str = "") -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    made = {f"{prefix}{name}": (10 * torch.randn(shape)).to(dtype) for name, shape in SHAPES.items()}
    save_file(made, path, {"format": "pt"})
    return made


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("piece", [64, reader.PIECE])
def test_a_tensor_is_what_the_library_reads_whichever_pieces_it_comes_in(
    piece: int, dtype: torch.dtype | None, stored: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PIECE", piece)
    saved(tmp_path / "model.safetensors", stored)
    tensors = CheckpointTensors(tmp_path, CPU)
    wanted = load_file(tmp_path / "model.safetensors")
    found = {name: tensors.ask(name, dtype or stored, tensor.shape) for name, tensor in wanted.items()}
    meter = Meter()
    tensors.read(meter)
    tensors.close()
    assert meter.n_bytes == sum(tensor.nbytes for tensor in wanted.values())
    for name, tensor in wanted.items():
        assert found[name].dtype == (dtype or stored)
        assert torch.equal(found[name], tensor.to(found[name].dtype))
    assert {name: tensor.tolist() for name, tensor in read_file(tmp_path / "model.safetensors").items()} == {
        name: tensor.tolist() for name, tensor in wanted.items()
    }


def test_tensors_of_several_kinds_share_a_piece(tmp_path: Path) -> None:
    kinds = {f"{i}.{dtype!s}": (10 * torch.randn(1 + 3 * i)).to(dtype) for i in range(5) for dtype in reversed(STORED)}
    path = tmp_path / "model.safetensors"
    save_file(kinds, path)
    assert all(torch.equal(tensor, kinds[name]) for name, tensor in read_file(path).items())
    tensors = CheckpointTensors(tmp_path, CPU)
    cast = {name: tensors.ask(name, torch.float32, tensor.shape) for name, tensor in kinds.items()}
    tensors.read(Meter())
    assert all(torch.equal(tensor, kinds[name].float()) for name, tensor in cast.items())
    tensors.close()


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
def test_a_matrix_is_quantised_in_rows_as_it_would_be_as_a_whole(
    stored: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(48, 20).to(stored)
    save_file({"layer.weight": weight, "before": torch.ones(3)}, tmp_path / "model.safetensors")
    monkeypatch.setattr(reader, "PIECE", 7 * 20 * stored.itemsize + 3)
    tensors = CheckpointTensors(tmp_path, CPU)
    found = tensors.ask_int8("layer.weight", weight.shape)
    tensors.ask("before", torch.float32, (3,))
    tensors.read(Meter())
    tensors.close()
    for ours, theirs in zip(found, quantize(weight, CPU), strict=True):
        assert torch.equal(ours, theirs)


def test_files_are_read_one_behind_the_other_and_each_from_its_beginning_to_its_end(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PIECE", 100)
    files = {}
    for number in range(3):
        file = f"{number}.safetensors"
        files |= dict.fromkeys(saved(tmp_path / file, torch.float32, f"{number}."), file)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": files}))
    tensors = CheckpointTensors(tmp_path, CPU)
    for name in sorted(files, key=lambda name: name[::-1]):
        tensors.ask(name, torch.bfloat16, SHAPES[name[2:]])
    reads.clear()  # headers
    tensors.read(Meter())
    tensors.close()
    assert reads == sorted(reads)
    assert {file for file, _, _ in reads} == set(files.values())
    assert max(n for _, _, n in reads) == 100


def test_one_failing_read_ends_them_all_and_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"w": torch.zeros(1 << 18)}, tmp_path / "model.safetensors")
    monkeypatch.setattr(reader, "PIECE", 1 << 12)
    began: list[int] = []
    preadv = os.preadv

    def failing(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        began.append(offset)
        if len(began) == 40:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    tensors = CheckpointTensors(tmp_path, CPU)
    tensors.ask("w", torch.float32, (1 << 18,))
    with pytest.raises(
        UnsupportedModelError, match=r"model\.safetensors cannot be read at byte \d+: Input/output error"
    ):
        tensors.read(Meter())
    tensors.close()
    assert len(began) < 40 + 2 * reader.READERS  # of 256 pieces
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights")]


def test_a_file_that_shrinks_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(1 << 16)}, path)
    tensors = CheckpointTensors(tmp_path, CPU)
    tensors.ask("w", torch.bfloat16, (1 << 16,))
    os.truncate(path, 1000)
    with pytest.raises(UnsupportedModelError, match=r"model\.safetensors was cut short while it was read"):
        tensors.read(Meter())
    tensors.close()


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(header: Any, n_bytes: int = 16) -> Path:
        raw = header if isinstance(header, bytes) else json.dumps(header).encode()
        path = tmp_path / "w.safetensors"
        path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(n_bytes))
        return path

    return write


@pytest.mark.parametrize("header", [b"", b"{", b"\xff{}", b"[1]", {"w": 3}, {"w": {"dtype": "F32"}}])
def test_a_file_without_a_header_is_refused(header: Any, written: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"w\.safetensors cannot be loaded: .* header"):
        TensorFile(written(header))


PLACE: dict[str, Any] = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    ("change", "n_bytes", "told"),
    [
        ({"shape": [5]}, 16, "has 16 bytes"),
        ({"dtype": "F4"}, 16, "dtype F4"),
        ({"data_offsets": [-16, 16]}, 16, "has 32"),
        ({}, 15, r"w\.safetensors is cut short"),
    ],
)
def test_a_damaged_file_is_refused_and_named(
    change: dict[str, Any], n_bytes: int, told: str, written: Callable[..., Path]
) -> None:
    with pytest.raises(UnsupportedModelError, match=told):
        read_file(written({"w": PLACE | change}, n_bytes))


def test_a_tensor_that_is_not_there_is_named(written: Callable[..., Path]) -> None:
    file = TensorFile(written({"w": PLACE}))
    with pytest.raises(UnsupportedModelError, match="lacks the tensor 'v'"):
        file.place("v")
    file.close()
