"""Opens weight files, locates their tensors and reads their bytes: safetensors, and GGUF files as fp32."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.model.checkpoint_files import headless, read_header
from engine.model.gguf.config import read_config
from engine.model.gguf.folder import referred_file
from engine.model.gguf.tensors import GgufTensor, map_tensors

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
}  # fmt: skip


class _HeaderEntry(msgspec.Struct, frozen=True):
    """A tensor in the header of a safetensors file."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]  # bytes after the header: first, and last + 1


@dataclass(frozen=True, slots=True)
class TensorLocation:
    """A tensor's place in a file, and its type."""

    file: OpenFile
    dtype: torch.dtype
    shape: tuple[int, ...]
    first: int  # byte of the file
    n_bytes: int

    def rows(self, first: int, last: int) -> TensorLocation:
        """Return the location of rows ``first`` to ``last - 1``, of which the tensor may have fewer or none."""
        n_rows, row_bytes = self.shape[0], self.n_bytes // max(1, self.shape[0])
        first, last = min(first, n_rows), min(last, n_rows)
        n_bytes = (last - first) * row_bytes
        return replace(
            self, shape=(last - first, *self.shape[1:]), first=self.first + first * row_bytes, n_bytes=n_bytes
        )


class OpenFile:
    """An open file, which any number of threads may read.

    Raises:
        UnsupportedModelError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise UnsupportedModelError(f"{path} cannot be read: {error.strerror}") from error

    def close(self) -> None:
        self._file.close()

    def fill(self, buffers: list[memoryview], offset: int) -> None:
        """Fill buffers one after the other with the file's bytes from ``offset`` on.

        Raises:
            UnsupportedModelError: the bytes cannot be read, or the file was cut short.
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

    Raises:
        UnsupportedModelError: the file cannot be opened, or does not begin with the header of a safetensors file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            header = msgspec.json.decode(read_header(self._file, path), type=dict[str, msgspec.Raw])
            header.pop("__metadata__", None)
            self._stored = {name: msgspec.json.decode(raw, type=_HeaderEntry) for name, raw in header.items()}
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
        return [*self._stored]

    def locate(self, name: str) -> TensorLocation:
        """Return where a tensor is.

        Raises:
            UnsupportedModelError: the file lacks the tensor or some of its bytes, or its dtype is unknown.
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

    def map(self, place: TensorLocation) -> Tensor:
        """Return a tensor that is mapped from the file, so processes share it; its offset must suit its dtype."""
        if self._map is None:
            storage = torch.UntypedStorage.from_file(str(self.path), shared=False, nbytes=self._size)
            self._map = torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[arg-type]
        return self._map[place.first : place.first + place.n_bytes].view(place.dtype).view(place.shape)


class GgufFile(OpenFile):
    """The open GGUF file that a checkpoint folder refers to; its tensors have Hugging Face's names and are fp32.

    Args:
        folder: the checkpoint folder.

    Raises:
        UnsupportedModelError: the file was removed or changed.
    """

    def __init__(self, folder: Path) -> None:
        header = referred_file(folder)
        self.tensors: dict[str, GgufTensor] = map_tensors(header, read_config(header))
        super().__init__(header.path)

    @property
    def names(self) -> list[str]:
        return [*self.tensors]

    def locate(self, name: str) -> TensorLocation:
        """Return type and size of the tensor in fp32; ``DequantizeSink`` knows what is read from the file.

        Raises:
            UnsupportedModelError: the file lacks the tensor.
        """
        if name not in self.tensors:
            raise UnsupportedModelError(f"{self.path} lacks the tensor {name!r}")
        shape = self.tensors[name].info.shape
        return TensorLocation(self, torch.float32, shape, 0, 4 * prod(shape))
