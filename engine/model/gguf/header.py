"""Reads the header of a GGUF file: metadata and the offsets of tensors.

Lengths and counts are checked before memory is allocated for them, so a damaged or hostile file is refused.
"""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from engine.errors import UnsupportedModelError

BLOCKS = {  # tensor types by number: name, weights of a block, bytes of a block
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2),
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 20: ("IQ4_NL", 32, 18), 23: ("IQ4_XS", 256, 136),
}  # fmt: skip
LONGEST_HEADER = 100_000_000  # bytes; vocabularies of 260,000 tokens take about 10 MB
SAMPLE = 4096  # bytes of every tensor in the key
VERSIONS = (2, 3)

_CHUNK = 8 << 20  # bytes of a read
_SCALARS = dict(enumerate(("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?"))) | {10: "<u8", 11: "<i8", 12: "<f8"}
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")
_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_MOST_DIMENSIONS = 4
_LARGEST_ALIGNMENT = 1 << 20


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's type, shape and offset in the file."""

    type: int  # of ``BLOCKS``
    shape: tuple[int, ...]  # rows first, as in torch
    first: int  # byte of the file
    n_bytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row; of a vector: of all of it."""
        return self.n_bytes // prod(self.shape[:-1])


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The contents of a file except its weights."""

    path: Path
    size: int  # bytes of the file
    metadata: dict[str, Any]  # arrays of numbers are NumPy's
    tensors: dict[str, TensorInfo]
    digest: str  # hash of the header's bytes

    @property
    def n_weights(self) -> int:
        return sum(prod(info.shape) for info in self.tensors.values())

    def key(self) -> str:
        """Hash the size, the header, and ``SAMPLE`` bytes from the middle of every tensor to 32 hexadecimal digits.

        Raises:
            UnsupportedModelError: the file cannot be read.
        """
        digest = hashlib.sha256(f"{self.size} {self.digest}".encode())
        try:
            with self.path.open("rb", buffering=0) as file:
                for info in self.tensors.values():
                    file.seek(info.first + max(0, info.n_bytes - SAMPLE) // 2)
                    digest.update(file.read(min(SAMPLE, info.n_bytes)))
        except OSError as error:
            raise UnsupportedModelError(f"{self.path} cannot be read: {error.strerror}") from error
        return digest.hexdigest()[:32]


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the header of a file.

    Raises:
        UnsupportedModelError: the file is not GGUF, is damaged, or is not supported; names the cause.
    """
    try:
        with path.open("rb", buffering=0) as file:
            return _HeaderParser(file, path).parse()
    except OSError as error:
        raise UnsupportedModelError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UnsupportedModelError(f"{path} cannot be loaded: a name in its header is not UTF-8 ({error})") from error


class _HeaderParser:
    """Parses one header."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._size = path.stat().st_size
        self._data = b""
        self._at = 0

    def parse(self) -> GgufHeader:
        part = _PART.search(self._path.name)
        if part:
            raise self._refusal(_split_refusal(int(part[1])))
        magic, version = self._take(4), self._number("<I")
        if magic != b"GGUF":
            raise self._refusal("it does not begin with the letters GGUF")
        if version & 0xFFFF == 0:
            raise self._refusal("it is big-endian; only little-endian files are read")
        if version not in VERSIONS:
            raise self._refusal(f"its version is {version}; versions {' and '.join(map(str, VERSIONS))} are read")
        n_tensors, n_values = self._number("<Q"), self._number("<Q")
        metadata: dict[str, Any] = {}
        for _ in range(n_values):
            name = self._string()
            if name in metadata:
                raise self._refusal(f"the key {name!r} occurs twice in its metadata")
            metadata[name] = self._value(self._number("<I"))
        if str(metadata.get("split.count", 1)) not in ("0", "1"):
            raise self._refusal(_split_refusal(metadata["split.count"]))
        stored = [self._tensor() for _ in range(n_tensors)]
        tensors = self._placed(stored, self._first_byte(metadata))
        if n_tensors != len(tensors):
            raise self._refusal("two of its tensors have one name")
        digest = hashlib.sha256(self._data[: self._at]).hexdigest()
        return GgufHeader(self._path, self._size, metadata, tensors, digest)

    def _first_byte(self, metadata: dict[str, Any]) -> int:
        """Return the offset of the first tensor."""
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= _LARGEST_ALIGNMENT or alignment & (alignment - 1):
            raise self._refusal(
                f"general.alignment is {alignment!r}; it must be a power of two of at most {_LARGEST_ALIGNMENT}"
            )
        return -(-self._at // alignment) * alignment

    def _placed(self, stored: list[tuple[str, int, tuple[int, ...], int]], begin: int) -> dict[str, TensorInfo]:
        tensors = {}
        for name, kind, shape, offset in stored:
            if kind not in BLOCKS:
                known = ", ".join(block[0] for block in BLOCKS.values())
                raise self._refusal(f"its tensor {name!r} has type {_type_name(kind)}; supported are {known}")
            block, n_weights, n_bytes = BLOCKS[kind]
            if shape[-1] % n_weights:
                raise self._refusal(
                    f"the rows of its tensor {name!r} have {shape[-1]} weights, not a multiple of {n_weights} as "
                    f"{block} needs"
                )
            info = TensorInfo(kind, shape, begin + offset, prod(shape) // n_weights * n_bytes)
            if info.first + info.n_bytes > self._size:
                raise self._refusal(
                    f"it ends at byte {self._size}, but its tensor {name!r} would end at byte "
                    f"{info.first + info.n_bytes}: the file is cut short or damaged; download it again"
                )
            tensors[name] = info
        return tensors

    def _tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        name, n_dimensions = self._string(), self._number("<I")
        if not 1 <= n_dimensions <= _MOST_DIMENSIONS:
            raise self._refusal(f"its tensor {name!r} has {n_dimensions} dimensions")
        shape = tuple(self._number("<Q") for _ in range(n_dimensions))
        if 0 in shape:
            raise self._refusal(f"its tensor {name!r} has the shape {[*shape]}")
        return name, self._number("<I"), shape[::-1], self._number("<Q")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._numbers(kind, 1).item()
        if kind != _ARRAY:
            raise self._refusal(f"its metadata has a value of the unknown type {kind}")
        inner, count = self._number("<I"), self._number("<Q")
        if inner == _STRING:
            return self._strings(count)
        if inner not in _SCALARS:
            raise self._refusal(f"its metadata has an array of type {inner}, which is not read")
        return self._numbers(inner, count)

    def _numbers(self, kind: int, count: int) -> np.ndarray[Any, Any]:
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self._take(dtype.itemsize * count), dtype)

    def _strings(self, count: int) -> list[str]:
        """Read an array of strings, most of them without a call: vocabularies have several 100,000."""
        found: list[str] = []
        while len(found) < count:
            data, at, end = self._data, self._at, len(self._data)
            while len(found) < count and at + 8 <= end:
                (n_bytes,) = _LENGTH.unpack_from(data, at)
                if at + 8 + n_bytes > end:
                    break
                found.append(data[at + 8 : at + 8 + n_bytes].decode())
                at += 8 + n_bytes
            self._at = at
            if len(found) < count:
                found.append(self._string())  # reads the next chunk
        return found

    def _string(self) -> str:
        text: str = self._take(self._number("<Q")).decode()
        return text

    def _number(self, form: str) -> int:
        (value,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return value  # type: ignore[no-any-return]

    def _take(self, n_bytes: int) -> bytes:
        if self._at + n_bytes > len(self._data):
            self._load(n_bytes)
        taken = self._data[self._at : self._at + n_bytes]
        self._at += n_bytes
        return taken

    def _load(self, n_bytes: int) -> None:
        """Read chunks until ``n_bytes`` more are in memory."""
        end = self._at + n_bytes
        if end > self._size:
            raise self._refusal(
                f"it ends at byte {self._size}, in the middle of its header: the file is cut short or damaged; "
                f"download it again"
            )
        if end > LONGEST_HEADER:
            raise self._refusal(f"its header has more than {LONGEST_HEADER} bytes")
        while len(self._data) < end:
            more = self._file.read(max(_CHUNK, end - len(self._data)))
            if not more:
                raise self._refusal("it was cut short while it was read")
            self._data += more

    def _refusal(self, why: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self._path} cannot be loaded as a GGUF file: {why}")


def _type_name(kind: int) -> str:
    """Return ggml's name of a tensor type, or its number if the library does not know it."""
    from gguf.constants import GGMLQuantizationType

    try:
        return str(GGMLQuantizationType(kind).name)
    except ValueError:
        return str(kind)


def _split_refusal(n_parts: Any) -> str:
    return f"it is one of {n_parts} parts of a split file; merge them with llama-gguf-split --merge FIRST MERGED"
