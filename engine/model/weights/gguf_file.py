"""The GGUF file that a checkpoint folder refers to, whose rows are dequantised while they are read."""

from __future__ import annotations

from math import prod
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.model.gguf.config import read_config
from engine.model.gguf.folder import referred_file
from engine.model.gguf.tensors import WEIGHTS_AT_ONCE, GgufTensor, map_tensors
from engine.model.weights.sinks import Sink
from engine.model.weights.tensor_file import OpenFile, TensorLocation


class GgufFile(OpenFile):
    """An open GGUF file, whose tensors have Hugging Face's names and are fp32.

    Args:
        folder: that refers to it.

    Raises:
        UnsupportedModelError: the file is no longer there or was changed.
    """

    def __init__(self, folder: Path) -> None:
        header = referred_file(folder)
        self._stored = map_tensors(header, read_config(header))
        super().__init__(header.path)

    @property
    def names(self) -> list[str]:
        """Of its tensors."""
        return [*self._stored]

    def place(self, name: str) -> TensorLocation:
        """What a sink is to take: the tensor in fp32; ``dequantising`` says what is read of the file.

        Raises:
            UnsupportedModelError: the file lacks it.
        """
        if name not in self._stored:
            raise UnsupportedModelError(f"{self.path} lacks the tensor {name!r}")
        shape = self._stored[name].info.shape
        return TensorLocation(self, torch.float32, shape, 0, 4 * prod(shape))

    def dequantising(self, name: str, sink: Sink) -> Sink:
        """A sink that takes a tensor's bytes as the file has them, and hands ``sink`` its rows in fp32."""
        return Dequantised(self, self._stored[name], sink)


class Dequantised:
    """Rows of a GGUF file on the way to another sink.

    Args:
        file: that holds the tensor.
        stored: the tensor.
        sink: takes fp32.
    """

    def __init__(self, file: GgufFile, stored: GgufTensor, sink: Sink) -> None:
        info = stored.info
        self.place = TensorLocation(file, torch.uint8, (info.n_bytes,), info.first, info.n_bytes)
        self.unit = stored.unit_bytes
        self._stored, self._sink = stored, sink
        self._weights = prod(info.shape) * self.unit // info.n_bytes  # of a unit

    def memory(self, first: int, n_bytes: int) -> memoryview | None:
        """As ``Sink`` says."""
        return None

    def put(self, first: int, stored: Tensor) -> None:
        """As ``Sink`` says."""
        raw, step = stored.numpy(), self.unit * max(1, WEIGHTS_AT_ONCE // self._weights)
        for begin in range(0, len(raw), step):
            rows = torch.from_numpy(self._stored.dequantize(raw[begin : begin + step]))
            self._sink.put(4 * self._weights * ((first + begin) // self.unit), rows)
