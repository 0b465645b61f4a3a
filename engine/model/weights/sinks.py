"""Destinations of a tensor's bytes: own memory, a mapped file, another dtype or device, one byte a weight."""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from engine.model.gguf.tensors import WEIGHTS_AT_ONCE, GgufTensor
from engine.model.weights.files import TensorFile, TensorLocation


class Sink:
    """Receives a tensor's bytes in any order, from any thread, and no byte twice.

    Args:
        place: of the tensor.
        unit: bytes that the sink needs together; by default a value.
    """

    tensor: Tensor

    def __init__(self, place: TensorLocation, unit: int | None = None) -> None:
        self.place, self.unit = place, unit or place.dtype.itemsize

    def memory(self, first: int, n_bytes: int) -> memoryview | None:
        """Return memory for bytes of the tensor from byte ``first`` on; None: the reader calls ``put``."""
        return None

    def put(self, first: int, stored: Tensor) -> None:
        """Use values ``[n]`` in the file's dtype, from byte ``first`` of the tensor on; keeps no reference."""


class CopySink(Sink):
    """Fills a tensor that has its own memory.

    Args:
        place: of the tensor.
        device: of the result.
        dtype: of the result.
        n_padding: rows of zeros after the tensor's.
    """

    def __init__(self, place: TensorLocation, device: torch.device, dtype: torch.dtype, n_padding: int = 0) -> None:
        super().__init__(place)
        self.tensor = torch.empty(place.shape, dtype=dtype, device=device)
        if n_padding:
            self.tensor = torch.zeros(place.shape[0] + n_padding, *place.shape[1:], dtype=dtype, device=device)
        self._flat = self.tensor.view(-1)
        as_stored = dtype == place.dtype
        self._is_cast_on_device = device.type != "cpu" and not as_stored
        self._bytes: memoryview | None = None
        if device.type == "cpu" and as_stored:
            self._bytes = memoryview(self._flat.view(torch.uint8).numpy())  # type: ignore[arg-type]

    def memory(self, first: int, n_bytes: int) -> memoryview | None:
        return None if self._bytes is None else self._bytes[first : first + n_bytes]

    def put(self, first: int, stored: Tensor) -> None:
        """Copy the values, and wait until a device has them."""
        begin = first // self.unit
        values = stored.to(self._flat.device) if self._is_cast_on_device else stored
        self._flat[begin : begin + len(stored)].copy_(values)


class ColumnSink(Sink):
    """Keeps some columns of a matrix, whose rows it receives whole.

    Args:
        place: of the matrix.
        columns: that are kept.
        device: of the result.
        dtype: of the result.
    """

    def __init__(self, place: TensorLocation, columns: slice, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(place, place.shape[1] * place.dtype.itemsize)
        self._columns = columns
        self.tensor = torch.empty(place.shape[0], columns.stop - columns.start, dtype=dtype, device=device)

    def put(self, first: int, stored: Tensor) -> None:
        """Copy the columns, and wait until a device has them."""
        kept = stored.view(-1, self.place.shape[1])[:, self._columns].contiguous()
        begin = first // self.unit
        self.tensor[begin : begin + len(kept)] = kept.to(self.tensor.device)


class MapSink(Sink):
    """A tensor that is mapped from the file. Reading its bytes brings their pages into the cache.

    So a disk's error appears during the load, and not as a signal in the middle of a step.
    """

    def __init__(self, place: TensorLocation, file: TensorFile) -> None:
        super().__init__(place)
        self.tensor = file.map(place)


class QuantizeSink(Sink):
    """Quantizes a matrix ``[n_out, n_in]`` to one byte a weight, row by row.

    Args:
        place: of the matrix.
        device: of the result.
        dtype: int8 or fp8.
        lock: held while rows are quantized, because the temporary memory is several times the result.
        quantize_rows: rows -> their numbers and scales on the device.
        columns: whose numbers are kept; the scales are those of whole rows.
    """

    def __init__(
        self,
        place: TensorLocation,
        device: torch.device,
        dtype: torch.dtype,
        lock: threading.Lock,
        quantize_rows: Callable[[Tensor], tuple[Tensor, Tensor]],
        columns: slice | None = None,
    ) -> None:
        n_out, self._n_in = place.shape
        super().__init__(place, self._n_in * place.dtype.itemsize)
        self._columns = columns or slice(0, self._n_in)
        self.tensor = torch.empty(n_out, self._columns.stop - self._columns.start, dtype=dtype, device=device)
        self.scales = torch.empty(n_out, dtype=torch.float32, device=device)
        self._lock, self._quantize_rows = lock, quantize_rows

    def put(self, first: int, stored: Tensor) -> None:
        rows = slice(first // self.unit, first // self.unit + len(stored) // self._n_in)
        matrix = stored.view(-1, self._n_in).to(self.tensor.device)
        with self._lock:
            numbers, self.scales[rows] = self._quantize_rows(matrix)
            self.tensor[rows] = numbers[:, self._columns]


class DequantizeSink(Sink):
    """Dequantizes a GGUF tensor, and passes its rows in fp32 to another sink.

    Args:
        gguf: the tensor.
        sink: receives fp32; its place may be some rows of the tensor, whole units of it.
    """

    def __init__(self, gguf: GgufTensor, sink: Sink) -> None:
        info = gguf.info
        first, n_bytes = (n * info.n_bytes // (4 * prod(info.shape)) for n in (sink.place.first, sink.place.n_bytes))
        place = TensorLocation(sink.place.file, torch.uint8, (n_bytes,), info.first + first, n_bytes)
        super().__init__(place, gguf.unit_bytes)
        self._gguf, self._sink = gguf, sink
        self._unit_weights = prod(info.shape) * self.unit // info.n_bytes

    def put(self, first: int, stored: Tensor) -> None:
        raw, step = stored.numpy(), self.unit * max(1, WEIGHTS_AT_ONCE // self._unit_weights)
        for begin in range(0, len(raw), step):
            rows = torch.from_numpy(self._gguf.dequantize(raw[begin : begin + step]))
            self._sink.put(4 * self._unit_weights * ((first + begin) // self.unit), rows)


def load_sink(place: TensorLocation, device: torch.device, dtype: torch.dtype, n_padding: int = 0) -> Sink:
    """Return a sink for a tensor of ``dtype``: mapped if a CPU keeps the file's dtype and the bytes are aligned.

    ``n_padding``: rows of zeros after the tensor's, which then is not mapped.
    """
    as_stored = device.type == "cpu" and dtype == place.dtype and not n_padding
    file, is_aligned = place.file, place.first % dtype.itemsize == 0
    if isinstance(file, TensorFile) and as_stored and is_aligned and place.n_bytes:
        return MapSink(place, file)
    return CopySink(place, device, dtype, n_padding)
