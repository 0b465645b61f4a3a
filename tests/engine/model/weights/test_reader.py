"""Weights are read in pieces and equal what safetensors reads; errors of the disk name the file."""

from __future__ import annotations

import errno
import json
import os
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from engine.errors import UnsupportedModelError
from engine.model.matrices.linears import quantize
from engine.model.matrices.quantization import THRESHOLD, Quantization
from engine.model.weights import reader
from engine.model.weights.files import TensorFile
from engine.model.weights.meter import Meter
from engine.model.weights.reader import MOST_PARTS, Extent, ExtentPart, plan_reads
from engine.model.weights.tensors import CheckpointTensors, read_file

CPU = torch.device("cpu")
INT8_WITH_OUTLIERS = Quantization("int8", THRESHOLD)
STORED = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.bool, torch.int64)
SHAPES = {"matrix": (7, 5), "row": (8,), "number": (), "none": (0, 3), "large": (3, 64), "odd": (3,)}


@pytest.mark.parametrize("stored", [*STORED, None], ids=str)
def test_a_tensor_equals_what_safetensors_reads_in_pieces_of_any_size(
    stored: torch.dtype | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    path = tmp_path / "model.safetensors"
    kinds = STORED if stored is None else (stored,) * len(SHAPES)
    save_file(
        {name: (10 * torch.randn(SHAPES[name])).to(kind) for name, kind in zip(SHAPES, kinds, strict=False)}, path
    )
    expected = load_file(path)
    for piece, dtype in ((64, None), (64, torch.bfloat16), (reader.READ_BYTES, torch.float32)):
        monkeypatch.setattr(reader, "READ_BYTES", piece)
        tensors, meter = CheckpointTensors(tmp_path, CPU), Meter()
        dtypes = {name: dtype if own.is_floating_point() else None for name, own in expected.items()}
        found = {name: tensors.request(name, dtypes[name] or own.dtype, own.shape) for name, own in expected.items()}
        tensors.read(meter)
        tensors.close()
        assert meter.n_bytes == sum(tensor.nbytes for tensor in expected.values())
        for name, tensor in expected.items():
            assert found[name].dtype == (dtypes[name] or tensor.dtype)
            assert torch.equal(found[name], tensor.to(found[name].dtype))
    read = read_file(path)
    assert {name: tensor.tolist() for name, tensor in read.items()} == {
        name: tensor.tolist() for name, tensor in expected.items()
    }


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
def test_a_matrix_is_quantised_row_by_row_as_it_would_be_as_a_whole(
    stored: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(48, 20).to(stored)
    save_file({"layer.weight": weight, "before": torch.ones(3)}, tmp_path / "model.safetensors")
    monkeypatch.setattr(reader, "READ_BYTES", 7 * 20 * stored.itemsize + 3)
    tensors = CheckpointTensors(tmp_path, CPU)
    found = tensors.quantize("layer.weight", weight.shape, INT8_WITH_OUTLIERS)
    tensors.request("before", torch.float32, (3,))
    tensors.read(Meter())
    tensors.close()
    for ours, theirs in zip(found, quantize(weight, INT8_WITH_OUTLIERS, CPU), strict=True):
        assert torch.equal(ours, theirs)


def test_one_failed_read_ends_all_threads_and_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"w": torch.zeros(1 << 18)}, tmp_path / "model.safetensors")
    monkeypatch.setattr(reader, "READ_BYTES", 1 << 12)
    began: list[int] = []
    preadv = os.preadv

    def failing(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        began.append(offset)
        if len(began) == 40:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    tensors = CheckpointTensors(tmp_path, CPU)
    tensors.request("w", torch.float32, (1 << 18,))
    with pytest.raises(
        UnsupportedModelError, match=r"model\.safetensors cannot be read at byte \d+: Input/output error"
    ):
        tensors.read(Meter())
    tensors.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights")]


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(1 << 16)}, path)
    tensors = CheckpointTensors(tmp_path, CPU)
    tensors.request("w", torch.bfloat16, (1 << 16,))
    os.truncate(path, 1000)
    with pytest.raises(UnsupportedModelError, match=r"model\.safetensors was cut short while it was read"):
        tensors.read(Meter())
    tensors.close()


PLACE: dict[str, Any] = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    ("header", "n_bytes", "message"),
    [
        *((header, 16, r"w\.safetensors cannot be loaded: .* header") for header in (b"", b"{", b"\xff{}", b"[1]")),
        ({"w": 3}, 16, r"w\.safetensors cannot be loaded: .* header"),
        ({"w": {"dtype": "F32"}}, 16, r"w\.safetensors cannot be loaded: .* header"),
        ({"w": PLACE | {"shape": [5]}}, 16, "has 16 bytes"),
        ({"w": PLACE | {"dtype": "F4"}}, 16, "dtype F4"),
        ({"w": PLACE | {"data_offsets": [-16, 16]}}, 16, "has 32"),
        ({"w": PLACE}, 15, r"w\.safetensors is cut short"),
        ({"v": PLACE}, 16, "lacks the tensor 'w'"),
    ],
)
def test_a_damaged_file_is_refused_and_named(header: Any, n_bytes: int, message: str, tmp_path: Path) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(n_bytes))
    with pytest.raises(UnsupportedModelError, match=message), closing(TensorFile(path)) as file:
        file.locate("w")


@st.composite
def requests(draw: st.DrawFn) -> list[Extent]:
    """Extents of a few files, with and without gaps, in any order."""
    made: list[Extent] = []
    for file in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, 20))
        for _ in range(draw(st.integers(0, 12))):
            unit = draw(st.integers(1, 9))
            n_bytes = unit * draw(st.integers(1, 40))
            made.append(Extent(file, at, n_bytes, unit))
            at += n_bytes + draw(st.sampled_from([0, 0, 0, 1, 100]))
    return draw(st.permutations(made))


@given(requests(), st.integers(1, 200))
def test_every_byte_is_in_one_piece_and_pieces_are_in_the_order_of_the_files(
    extents: list[Extent], largest: int
) -> None:
    pieces = plan_reads(extents, largest)
    found: dict[int, list[ExtentPart]] = {i: [] for i in range(len(extents))}
    for piece in pieces:
        at = piece.first
        for part in piece.parts:
            extent = extents[part.extent]
            assert (piece.file, at) == (extent.file, extent.first + part.first)  # parts follow each other
            assert part.first % extent.unit == part.n_bytes % extent.unit == 0
            found[part.extent].append(part)
            at += part.n_bytes
        assert piece.n_bytes <= max([largest, *(extents[part.extent].unit for part in piece.parts)])
    for i, parts in found.items():
        covered = [byte for part in parts for byte in range(part.first, part.first + part.n_bytes)]
        assert covered == [*range(extents[i].n_bytes)]  # once each, and a tensor from its beginning on
    order = [(piece.file, piece.first) for piece in pieces]
    assert order == sorted(order)


def test_a_piece_has_no_more_parts_than_the_kernel_takes_at_once() -> None:
    pieces = plan_reads([Extent(0, i, 1, 1) for i in range(3 * MOST_PARTS)], 1 << 20)
    assert [len(piece.parts) for piece in pieces] == [MOST_PARTS] * 3
