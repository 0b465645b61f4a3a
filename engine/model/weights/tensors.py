"""Tensors of a checkpoint: safetensors, or a folder that refers to a GGUF file. Knows files and names, not models."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.model.checkpoint_files import SINGLE, check_format, files_of_tensors
from engine.model.gguf.folder import referred_file, refers_to_gguf
from engine.model.matrices.layout import WeightLayout
from engine.model.matrices.linears import DTYPES, FP8_DTYPE, quantize
from engine.model.matrices.part import INNER, OUTER, WeightPart
from engine.model.matrices.quantization import Quantization
from engine.model.matrices.stored import allowed_tensors
from engine.model.weights.files import GgufFile, TensorFile, TensorLocation
from engine.model.weights.meter import Meter
from engine.model.weights.reader import read_tensors
from engine.model.weights.sinks import ColumnSink, CopySink, DequantizeSink, QuantizeSink, Sink, load_sink

Shape = Sequence[int]


class CheckpointTensors:
    """Requests tensors of a checkpoint directory, then reads them together: every file is opened and read once.

    Args:
        path: the directory, with one file, an index of several, or a reference to a GGUF file. Files without requested
            tensors need not exist.
        device: of the tensors.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        self._path = path
        self._device = device
        self._open: dict[Path, TensorFile | GgufFile] = {}
        self._sinks: list[Sink] = []  # of requested tensors
        self._requested: dict[str, Tensor] = {}  # by name; of a matrix to quantize, its scales
        self._quantizing = threading.Lock()
        check_format(path)
        self._files = {name: path / file for name, file in files_of_tensors(path).items()}
        if not self._files:
            single = GgufFile(path) if refers_to_gguf(path) else TensorFile(path / SINGLE)
            self._open[single.path] = single
            self._files = dict.fromkeys(single.names, single.path)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def check(self, name: str, shape: Shape) -> None:
        """Check a tensor by the header of its file; reads none of its values.

        Raises:
            UnsupportedModelError: the checkpoint lacks the tensor or its file, or has another shape or too few bytes.
        """
        self._locate_float(name, shape, torch.float32)

    def request(self, name: str, dtype: torch.dtype, shape: Shape, part: WeightPart | None = None) -> Tensor:
        """Return a tensor, or ``part`` of it, on the device, whose values ``read`` fills in.

        On a CPU, a tensor in the file's dtype is mapped from the file, so processes share its pages. Of a part by rows
        only its bytes are read.

        Raises:
            UnsupportedModelError: the checkpoint lacks the tensor or its file, the file is damaged, the tensor has
                another shape, or its numbers are fp8 or integers, which mean nothing without scales.
        """
        place = self._locate_float(name, shape, dtype)
        if part is None or len(shape) == 1:  # a GGUF file may only have a vector as a whole
            sink = load_sink(place, self._device, dtype)
        elif part.dim == INNER:
            sink = ColumnSink(place, slice(part.first, part.last), self._device, dtype)
        else:
            own = place.rows(part.first, part.last)
            sink = load_sink(own, self._device, dtype, part.last - part.first - own.shape[0])
        self._add(name, sink, sink.tensor)
        return sink.tensor if part is None or len(shape) > 1 else part.of(sink.tensor)

    def quantize(
        self, name: str, shape: Shape, quantization: Quantization, part: WeightPart | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return a matrix with one byte a weight and its scales fp32 ``[n_out]``, which ``read`` makes.

        Of ``part`` of a matrix, numbers and scales are those that the whole matrix has there.

        Raises:
            UnsupportedModelError: as ``request``.
        """
        rows = part if part is not None and part.dim == OUTER else None
        by = partial(quantize, quantization=quantization, device=self._device)
        place = self._locate(name, shape)
        own = place if rows is None else place.rows(rows.first, rows.last)
        columns = None if part is None or rows is not None else slice(part.first, part.last)
        made = QuantizeSink(own, self._device, DTYPES[quantization.name], self._quantizing, by, columns)
        self._add(name, made, made.scales)
        return made.tensor, made.scales

    def check_matrix(self, owner: str, layout: WeightLayout, shape: Shape) -> dict[str, TensorLocation]:
        """Return where the tensors of a stored matrix are, by the last part of their names; reads no values.

        Raises:
            UnsupportedModelError: a tensor is missing, its shape or dtype is not that of a matrix of ``shape``, or its
                file is damaged.
        """
        found = {}
        allowed = allowed_tensors(layout, *shape)
        for suffix in layout.suffixes(owner, self._files):
            name = f"{owner}.{suffix}"
            place = found[suffix] = self._opened(name).locate(name)
            shapes, dtypes = allowed[suffix]
            if place.shape not in shapes or place.dtype not in dtypes:
                ways = " or ".join(str([*one]) for one in shapes), " or ".join(str(one)[6:] for one in dtypes)
                raise UnsupportedModelError(
                    f"{name!r} in {self._path} has the shape {[*place.shape]} and the dtype {str(place.dtype)[6:]}, "
                    f"but for the matrix {[*shape]} that config.json describes it needs {ways[0]} and {ways[1]}"
                )
        return found

    def request_matrix(
        self, owner: str, layout: WeightLayout, shape: Shape, part: WeightPart | None = None
    ) -> dict[str, Tensor]:
        """Return the tensors of a stored matrix on the CPU as they are in the file, filled by ``read``.

        Of a part by rows, only the rows of plain numbers are read.

        Raises:
            UnsupportedModelError: as ``check_matrix``.
        """
        tensors = {}
        for suffix, place in self.check_matrix(owner, layout, shape).items():
            if suffix == "weight" and part is not None and part.dim == OUTER:
                place = place.rows(part.first, part.last)
            sink = load_sink(place, torch.device("cpu"), place.dtype)
            self._add(f"{owner}.{suffix}", sink, sink.tensor)
            tensors[suffix] = sink.tensor
        return tensors

    @property
    def requested_bytes(self) -> int:
        """Bytes that ``read`` would read now."""
        return sum(sink.place.n_bytes for sink in self._sinks)

    def read(self, meter: Meter) -> None:
        """Read all requested tensors.

        Raises:
            UnsupportedModelError: a file cannot be read, or was cut short, or a tensor holds NaN or infinity.
        """
        sinks, self._sinks = self._sinks, []
        requested, self._requested = self._requested, {}
        read_tensors(sinks, meter, self._device)
        for name, tensor in requested.items():
            if not _is_finite(tensor):
                raise UnsupportedModelError(
                    f"{self._files[name]} cannot be loaded: {name!r} holds NaN or infinity in {str(tensor.dtype)[6:]}"
                )

    def close(self) -> None:
        for file in self._open.values():
            file.close()

    def _add(self, name: str, sink: Sink, filled: Tensor) -> None:
        file = self._opened(name)
        self._requested[name] = filled
        self._sinks.append(DequantizeSink(file.tensors[name], sink) if isinstance(file, GgufFile) else sink)

    def _locate_float(self, name: str, shape: Shape, dtype: torch.dtype) -> TensorLocation:
        place = self._locate(name, shape)
        is_small = place.dtype == FP8_DTYPE or not place.dtype.is_floating_point
        if is_small and dtype != place.dtype:
            raise UnsupportedModelError(
                f"{name!r} in {self._path} is {str(place.dtype)[6:]} without a scale, as quantization_config of "
                f"config.json describes it; its numbers alone mean nothing"
            )
        return place

    def _locate(self, name: str, shape: Shape) -> TensorLocation:
        place = self._opened(name).locate(name)
        if place.shape != tuple(shape):
            raise UnsupportedModelError(
                f"{name!r} in {self._path} has the shape {[*place.shape]}, but the model that config.json describes "
                f"needs {[*shape]}"
            )
        return place

    def _opened(self, name: str) -> TensorFile | GgufFile:
        if name not in self._files:
            raise UnsupportedModelError(
                f"{self._path} lacks the tensor {name!r}, which the model that config.json describes needs"
            )
        path = self._files[name]
        if path not in self._open:
            if not path.exists():
                raise UnsupportedModelError(f"{self._path} lacks the file {path.name!r}, which holds {name!r}")
            self._open[path] = TensorFile(path)
        return self._open[path]


def read_file(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a safetensors file on the CPU, in their dtypes and in own memory.

    Raises:
        UnsupportedModelError: the file is no safetensors file, or is damaged.
    """
    file, cpu = TensorFile(path), torch.device("cpu")
    try:
        places = {name: file.locate(name) for name in file.names}
        sinks = {name: CopySink(place, cpu, place.dtype) for name, place in places.items()}
        read_tensors([*sinks.values()], Meter(str(path)), cpu)
    finally:
        file.close()
    return {name: sink.tensor for name, sink in sinks.items()}


def _is_finite(tensor: Tensor) -> bool:
    """Return whether no value is NaN or infinity; integers and fp8 are not checked."""
    if not tensor.is_floating_point() or tensor.dtype == FP8_DTYPE:
        return True
    return bool(tensor.sum(dtype=torch.float32).isfinite()) or bool(tensor.isfinite().all())  # a sum can overflow


def loaded_bytes(path: Path) -> int:
    """Return the bytes of all weights of a checkpoint in its dtype, which is fp32 for a GGUF file.

    Raises:
        UnsupportedModelError: the GGUF file that it refers to was removed or changed.
    """
    if refers_to_gguf(path):
        return 4 * referred_file(path).n_weights
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))
