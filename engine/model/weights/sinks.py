"""Where a tensor's bytes go once they are read: its own memory, the file's, another dtype or device, a byte each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from engine.model.weights.tensor_file import TensorFile, TensorLocation


class Sink(Protocol):
    """Takes a tensor's bytes in any order, from any thread, and no byte twice."""

    place: TensorLocation
    unit: int  # bytes that it needs together

    def memory(self, first: int, n_bytes: int) -> memoryview | None:
        """Memory for bytes of the tensor from byte ``first`` on; None: they are to be ``put``."""

    def put(self, first: int, stored: Tensor) -> None:
        """Take values ``[n]``, as they are stored, from byte ``first`` of the tensor on; keeps nothing of them."""


class Copied:
    """A tensor with memory of its own.

    Args:
        place: of the tensor.
        device: where it goes.
        dtype: of the result.
    """

    def __init__(self, place: TensorLocation, device: torch.device, dtype: torch.dtype) -> None:
        self.place = place
        self.unit = place.dtype.itemsize
        self.tensor = torch.empty(place.shape, dtype=dtype, device=device)
        self._flat = self.tensor.view(-1)
        as_stored = dtype == place.dtype
        self._is_cast_there = device.type != "cpu" and not as_stored
        self._bytes: memoryview | None = None
        if device.type == "cpu" and as_stored:
            self._bytes = memoryview(self._flat.view(torch.uint8).numpy())  # type: ignore[arg-type]

    def memory(self, first: int, n_bytes: int) -> memoryview | None:
        """As ``Sink`` says."""
        return None if self._bytes is None else self._bytes[first : first + n_bytes]

    def put(self, first: int, stored: Tensor) -> None:
        """As ``Sink`` says; waits until a device has the values."""
        begin = first // self.unit
        there = stored.to(self._flat.device) if self._is_cast_there else stored
        self._flat[begin : begin + len(stored)].copy_(there)


class Scales:
    """A scale for each output of a matrix, fp32, of one for each or of one for all.

    Args:
        place: of the scales.
        n_out: outputs.
        device: where they go.
        divisor: of what is stored: 127 where that is the largest number of a row of int8.
    """

    def __init__(self, place: TensorLocation, n_out: int, device: torch.device, divisor: float = 1.0) -> None:
        self.place, self._divisor = place, divisor
        self.unit = place.dtype.itemsize
        self.tensor = torch.empty(n_out, dtype=torch.float32, device=device)

    def memory(self, first: int, n_bytes: int) -> memoryview | None:
        """As ``Sink`` says."""
        return None

    def put(self, first: int, stored: Tensor) -> None:
        """As ``Sink`` says."""
        begin = first // self.unit
        there = stored.to(self.tensor.device).float() / self._divisor
        if self.place.n_bytes == self.unit:
            self.tensor.copy_(there.expand(len(self.tensor)))
        else:
            self.tensor[begin : begin + len(stored)] = there


class Mapped:
    """A tensor in the file's own memory: to read it brings its pages into the cache, where the map finds them.

    An error of the disk shows while it is read, and not as a signal in the middle of a step.
    """

    def __init__(self, place: TensorLocation, file: TensorFile) -> None:
        self.place = place
        self.unit = place.dtype.itemsize
        self.tensor = file.mapped(place)

    def memory(self, first: int, n_bytes: int) -> memoryview | None:
        """As ``Sink`` says."""
        return None

    def put(self, first: int, stored: Tensor) -> None:
        """As ``Sink`` says."""


class Quantized:
    """A matrix ``[n_out, n_in]`` that becomes int8, or fp8, row by row.

    Args:
        place: of the matrix.
        device: where its rows are quantised, and stay.
        one_at_a_time: held while rows are quantised: that takes several times what comes out.
        dtype: int8 or fp8.
        quantizes: rows on the device -> their numbers and scales.
    """

    def __init__(
        self,
        place: TensorLocation,
        device: torch.device,
        one_at_a_time: threading.Lock,
        dtype: torch.dtype,
        quantizes: Callable[[Tensor], tuple[Tensor, Tensor]],
    ) -> None:
        n_out, self._n_in = place.shape
        self.place = place
        self.unit = self._n_in * place.dtype.itemsize
        self.tensor = torch.empty(place.shape, dtype=dtype, device=device)
        self.scales = torch.empty(n_out, dtype=torch.float32, device=device)
        self._one_at_a_time, self._quantizes = one_at_a_time, quantizes

    def memory(self, first: int, n_bytes: int) -> memoryview | None:
        """As ``Sink`` says."""
        return None

    def put(self, first: int, stored: Tensor) -> None:
        """As ``Sink`` says."""
        rows = slice(first // self.unit, first // self.unit + len(stored) // self._n_in)
        matrix = stored.view(-1, self._n_in).to(self.tensor.device)
        with self._one_at_a_time:
            self.tensor[rows], self.scales[rows] = self._quantizes(matrix)


def plain(place: TensorLocation, device: torch.device, dtype: torch.dtype) -> Copied | Mapped:
    """A tensor in a dtype on a device. What a CPU keeps as it is stored stays in the file's memory, if it can."""
    as_stored = device.type == "cpu" and dtype == place.dtype
    file, is_aligned = place.file, place.first % dtype.itemsize == 0
    if isinstance(file, TensorFile) and as_stored and is_aligned and place.n_bytes:
        return Mapped(place, file)
    return Copied(place, device, dtype)
