"""One safetensors file, opened once. What a CPU keeps as it is stored is mapped; all else is read piece by piece.

The library maps everything. Pages of a map stay in this process's memory until the file is closed, though a cast or a
GPU needs them for a moment only, and a GPU cannot fetch them by itself.
"""

from __future__ import annotations

import os
from math import prod
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.model.identity import headless, read_header

PIECE = 2 << 20  # bytes on their way from the file to another device or dtype; a multiple of all item sizes
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


class _Place(msgspec.Struct, frozen=True):
    """Where a tensor is in the part of a file that follows its header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]  # bytes: its first, and the one behind its last


class TensorFile:
    """An open file; any number of threads may read from it.

    Args:
        path: of the file.

    Raises:
        UnsupportedModelError: it does not begin with the header of a safetensors file.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb", buffering=0)
        try:
            header = msgspec.json.decode(read_header(self._file, path), type=dict[str, msgspec.Raw])
            header.pop("__metadata__", None)
            self._places = {name: msgspec.json.decode(raw, type=_Place) for name, raw in header.items()}
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._file.close()
            raise headless(path) from error
        except BaseException:
            self._file.close()
            raise
        self._begin = self._file.tell()
        self._size = path.stat().st_size
        self._map: Tensor | None = None  # uint8, the whole file

    @property
    def names(self) -> list[str]:
        """Of its tensors."""
        return [*self._places]

    def shape(self, name: str) -> list[int]:
        """Of a tensor.

        Raises:
            UnsupportedModelError: as ``read``.
        """
        return self._checked(name)[0].shape

    def close(self) -> None:
        """Close it; tensors that were read stay."""
        self._file.close()

    def read(self, name: str, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor on a device. Nothing else of its size is held on the way.

        Args:
            name: of the tensor.
            device: where it goes.
            dtype: of the result. If a CPU has it as it is stored, the result is the file's own memory: its pages are
                read when they are used, and processes share them. None: as it is stored, in memory of its own.

        Raises:
            UnsupportedModelError: the file lacks it, or its bytes, or has them in a dtype that is not known.
        """
        place, stored = self._checked(name)
        offset = self._begin + place.data_offsets[0]
        if device.type == "cpu" and dtype == stored and offset % stored.itemsize == 0:
            return self._mapped()[offset : self._begin + place.data_offsets[1]].view(stored).view(place.shape)
        tensor = torch.empty(place.shape, dtype=dtype or stored, device=device)
        flat = tensor.view(-1)
        if device.type == "cpu" and tensor.dtype == stored:
            self._fill(flat, offset)
            return tensor
        n = min(PIECE // stored.itemsize, flat.numel())
        buffer = torch.empty(n, dtype=stored, pin_memory=device.type == "cuda")
        for first in range(0, flat.numel(), n or 1):
            piece = buffer[: flat.numel() - first]
            self._fill(piece, offset + first * stored.itemsize)
            flat[first : first + n].copy_(piece.to(device))  # which waits until the buffer has been read
        return tensor

    def _checked(self, name: str) -> tuple[_Place, torch.dtype]:
        if name not in self._places:
            raise UnsupportedModelError(f"{self._path} lacks the tensor {name!r}")
        place = self._places[name]
        if place.dtype not in _DTYPES:
            known = ", ".join(_DTYPES)
            raise UnsupportedModelError(f"{name!r} in {self._path} has the dtype {place.dtype}; read are {known}")
        dtype, (first, last) = _DTYPES[place.dtype], place.data_offsets
        if min([first, *place.shape]) < 0 or last - first != prod(place.shape) * dtype.itemsize:
            raise UnsupportedModelError(f"{name!r} in {self._path} has {last - first} bytes for shape {place.shape}")
        if self._begin + last > self._size:
            file, folder = self._path.name, self._path.parent
            raise UnsupportedModelError(f"{folder} cannot be loaded: {file} is cut short, it ends at byte {self._size}")
        return place, dtype

    def _mapped(self) -> Tensor:
        if self._map is None:
            storage = torch.UntypedStorage.from_file(str(self._path), shared=False, nbytes=self._size)
            self._map = torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[arg-type]
        return self._map

    def _fill(self, flat: Tensor, offset: int) -> None:
        """Fill a contiguous tensor of the CPU with the file's bytes from ``offset`` on."""
        rest = memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]
        while rest:
            n = os.preadv(self._file.fileno(), [rest], offset)
            if n == 0:
                raise UnsupportedModelError(f"{self._path} was cut short while it was read")
            rest, offset = rest[n:], offset + n
