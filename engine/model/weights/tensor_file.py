"""One safetensors file, opened once: where its tensors are, and their bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.model.checkpoint_files import headless, read_header

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
}  # fmt: skip


class _Stored(msgspec.Struct, frozen=True):
    """What the header says of a tensor."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]  # bytes behind the header: its first, and the one behind its last


@dataclass(frozen=True, slots=True)
class TensorLocation:
    """Where a tensor is."""

    file: OpenFile
    dtype: torch.dtype
    shape: tuple[int, ...]
    first: int  # byte of the file
    n_bytes: int


class OpenFile:
    """An open file; any number of threads may read from it.

    Args:
        path: of the file.

    Raises:
        UnsupportedModelError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise UnsupportedModelError(f"{path} cannot be read: {error.strerror}") from error

    def close(self) -> None:
        """Close it; tensors that were read stay."""
        self._file.close()

    def fill(self, buffers: list[memoryview], offset: int) -> None:
        """Fill buffers, one after the other, with the file's bytes from ``offset`` on.

        Raises:
            UnsupportedModelError: the bytes cannot be read, or are no longer there.
        """
        rest = [buffer for buffer in buffers if buffer]
        while rest:
            try:
                n = os.preadv(self._file.fileno(), rest, offset)
            except OSError as error:
                why = f"{self.path} cannot be read at byte {offset}: {error.strerror}"
                raise UnsupportedModelError(why) from error
            if n == 0:
                raise UnsupportedModelError(f"{self.path} was cut short while it was read")
            offset += n
            while rest and n >= len(rest[0]):
                n -= len(rest.pop(0))
            if n:
                rest[0] = rest[0][n:]


class TensorFile(OpenFile):
    """An open safetensors file.

    Args:
        path: of the file.

    Raises:
        UnsupportedModelError: it cannot be opened, or does not begin with the header of a safetensors file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            header = msgspec.json.decode(read_header(self._file, path), type=dict[str, msgspec.Raw])
            header.pop("__metadata__", None)
            self._stored = {name: msgspec.json.decode(raw, type=_Stored) for name, raw in header.items()}
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
        return [*self._stored]

    def place(self, name: str) -> TensorLocation:
        """Where a tensor is.

        Raises:
            UnsupportedModelError: the file lacks it, or its bytes, or has them in a dtype that is not known.
        """
        if name not in self._stored:
            raise UnsupportedModelError(f"{self.path} lacks the tensor {name!r}")
        stored = self._stored[name]
        if stored.dtype not in _DTYPES:
            known = ", ".join(_DTYPES)
            raise UnsupportedModelError(f"{name!r} in {self.path} has the dtype {stored.dtype}; read are {known}")
        dtype, (first, last) = _DTYPES[stored.dtype], stored.data_offsets
        if min([first, *stored.shape]) < 0 or last - first != prod(stored.shape) * dtype.itemsize:
            raise UnsupportedModelError(f"{name!r} in {self.path} has {last - first} bytes for shape {stored.shape}")
        if self._begin + last > self._size:
            file, folder = self.path.name, self.path.parent
            raise UnsupportedModelError(f"{folder} cannot be loaded: {file} is cut short, it ends at byte {self._size}")
        return TensorLocation(self, dtype, tuple(stored.shape), self._begin + first, last - first)

    def mapped(self, place: TensorLocation) -> Tensor:
        """A tensor whose memory is the file's own, which processes share; its place must suit its dtype."""
        if self._map is None:
            storage = torch.UntypedStorage.from_file(str(self.path), shared=False, nbytes=self._size)
            self._map = torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[arg-type]
        return self._map[place.first : place.first + place.n_bytes].view(place.dtype).view(place.shape)
