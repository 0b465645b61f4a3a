"""Tensors of a checkpoint: safetensors, or a folder that refers to a GGUF file. Knows files and names, no models."""

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
from engine.model.quantization import bitsandbytes
from engine.model.quantized import SCALES, quantize
from engine.model.scaled import FP8_DTYPE, quantize_rows, scale_of
from engine.model.weights.gguf_file import GgufFile
from engine.model.weights.meter import Meter
from engine.model.weights.reader import read
from engine.model.weights.sinks import Copied, Mapped, Quantized, Scales, Sink, plain
from engine.model.weights.tensor_file import TensorFile, TensorLocation

Shape = Sequence[int]


class CheckpointTensors:
    """What a checkpoint directory holds. Tensors are asked for first and then read together, and no others: every file
    is opened once, and read from its beginning to its end.

    Args:
        path: the directory, with one file, an index of several, or a reference to a GGUF file; files that no tensor is
            read from need not exist.
        device: where tensors go.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        self._path = path
        self._device = device
        self._open: dict[Path, TensorFile | GgufFile] = {}
        self._sinks: list[Sink] = []  # that were asked for and are not read
        self._asked: dict[str, Tensor] = {}  # that the sinks fill, by name; of quantised matrices the scales
        self._quantizing = threading.Lock()
        check_format(path)
        self._files = {name: path / file for name, file in files_of_tensors(path).items()}
        if not self._files:
            single = GgufFile(path) if refers_to_gguf(path) else TensorFile(path / SINGLE)
            self._open[single.path] = single
            self._files = dict.fromkeys(single.names, single.path)

    def __contains__(self, name: str) -> bool:
        """Whether the checkpoint lists the tensor."""
        return name in self._files

    def check(self, name: str, shape: Shape) -> None:
        """Read the header of the tensor's file, and nothing of the tensor.

        Raises:
            UnsupportedModelError: the checkpoint lacks the tensor or its file, or has another shape or too few bytes.
        """
        self._place(name, shape)

    def ask(self, name: str, dtype: torch.dtype, shape: Shape) -> Tensor:
        """A tensor on the device, whose values are there after ``read``. If a CPU has it as it is stored, it is the
        file's own memory: processes share its pages.

        Raises:
            UnsupportedModelError: the checkpoint lacks it, or the file that holds it, or that is damaged, or it has
                another shape, or is fp8, of which the numbers alone say nothing.
        """
        place = self._place(name, shape)
        if place.dtype == FP8_DTYPE != dtype:
            raise UnsupportedModelError(f"{name!r} in {self._path} is fp8, which only matrices of its layers may be")
        sink: Copied | Mapped = plain(place, self._device, dtype)
        self._add(name, sink, sink.tensor)
        return sink.tensor

    def ask_int8(self, name: str, shape: Shape) -> tuple[Tensor, Tensor]:
        """A matrix as bitsandbytes has it in int8, with its scales: as they are stored, or quantised when it is read.

        Raises:
            UnsupportedModelError: as ``ask``.
            ConfigError: bitsandbytes is not installed.
        """
        scales = name.removesuffix("weight") + SCALES
        if scales in self:
            return self.ask(name, torch.int8, shape), self.ask(scales, torch.float32, shape[:1])
        bitsandbytes()
        by = partial(quantize, device=self._device)
        sink = Quantized(self._place(name, shape), self._device, self._quantizing, torch.int8, by)
        self._add(name, sink, sink.scales)
        return sink.tensor, sink.scales

    def ask_scaled(self, name: str, shape: Shape, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """A matrix as fp8 or int8 with the scales of its outputs, likewise: as stored, or quantised when it is read.

        Raises:
            UnsupportedModelError: as ``ask``; or the scales are neither one nor one for each output.
        """
        is_fp8, n_out = dtype == FP8_DTYPE, shape[0]
        scales = scale_of(name) if is_fp8 else name.removesuffix("weight") + SCALES
        if scales not in self:
            by = partial(quantize_rows, dtype=dtype)
            sink = Quantized(self._place(name, shape), self._device, self._quantizing, dtype, by)
            self._add(name, sink, sink.scales)
            return sink.tensor, sink.scales
        place = self._opened(scales).place(scales)
        if place.shape not in ((), (1,), (n_out,), (n_out, 1)):
            raise UnsupportedModelError(
                f"{scales!r} in {self._path} has the shape {[*place.shape]}; {'fp8' if is_fp8 else 'int8'} is read "
                f"with one scale for a matrix ([1]) or for each of its outputs ([{n_out}, 1]), not for blocks"
            )
        spread = Scales(place, n_out, self._device, 1.0 if is_fp8 else 127.0)
        self._add(scales, spread, spread.tensor)
        return self.ask(name, dtype, shape), spread.tensor

    def read(self, meter: Meter) -> None:
        """Read all that was asked for.

        Raises:
            UnsupportedModelError: a file cannot be read, or was cut short meanwhile, or a tensor holds NaN or infinity.
        """
        sinks, self._sinks = self._sinks, []
        asked, self._asked = self._asked, {}
        read(sinks, meter, self._device)
        for name, tensor in asked.items():
            if not _is_finite(tensor):
                raise UnsupportedModelError(
                    f"{self._files[name]} cannot be loaded: {name!r} holds NaN or infinity in {str(tensor.dtype)[6:]}"
                )

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            file.close()

    def _add(self, name: str, sink: Sink, filled: Tensor) -> None:
        file = self._opened(name)
        self._asked[name] = filled
        self._sinks.append(file.dequantising(name, sink) if isinstance(file, GgufFile) else sink)

    def _place(self, name: str, shape: Shape) -> TensorLocation:
        """Where a tensor is; of the right shape, or its values would go to the wrong places."""
        place = self._opened(name).place(name)
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
    """All tensors of a safetensors file, on the CPU and as they are stored, in memory of their own.

    Raises:
        UnsupportedModelError: it is no such file, or is damaged.
    """
    file, cpu = TensorFile(path), torch.device("cpu")
    try:
        places = {name: file.place(name) for name in file.names}
        sinks = {name: Copied(place, cpu, place.dtype) for name, place in places.items()}
        read([*sinks.values()], Meter(str(path)), cpu)
    finally:
        file.close()
    return {name: sink.tensor for name, sink in sinks.items()}


def _is_finite(tensor: Tensor) -> bool:
    """Whether all values are numbers; whole numbers and fp8 are not looked at."""
    if not tensor.is_floating_point() or tensor.dtype == FP8_DTYPE:
        return True
    return bool(tensor.sum(dtype=torch.float32).isfinite()) or bool(tensor.isfinite().all())  # a sum can overflow


def loaded_bytes(path: Path) -> int:
    """Bytes of all weights of a checkpoint as it declares them: those of a GGUF file are fp32.

    Raises:
        UnsupportedModelError: the GGUF file that it refers to is no longer there or has changed.
    """
    if refers_to_gguf(path):
        return 4 * referred_file(path).n_weights
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))
