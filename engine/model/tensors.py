"""Tensors of a safetensors checkpoint. Knows files and names, and nothing of models."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.model.quantized import SCALES, quantize
from engine.model.tensor_file import TensorFile

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CPU = torch.device("cpu")
Shape = Sequence[int]


class CheckpointTensors:
    """What a checkpoint directory holds; a tensor's bytes are read when it is asked for, and no others. Every file is
    opened once. Any number of threads may read.

    Args:
        path: the directory, with one file or an index of several; files that no tensor is read from need not exist.
        device: where tensors go.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        self._path = path
        self._device = device
        self._open: dict[Path, TensorFile] = {}
        self._files = _indexed(path)
        if not self._files:
            single = TensorFile(path / SINGLE)
            self._open[path / SINGLE] = single
            self._files = dict.fromkeys(single.names, path / SINGLE)
        self._opening = threading.Lock()

    def __contains__(self, name: str) -> bool:
        """Whether the checkpoint lists the tensor."""
        return name in self._files

    def read(self, name: str, dtype: torch.dtype, shape: Shape) -> Tensor:
        """A tensor on the device.

        Raises:
            UnsupportedModelError: the checkpoint lacks it, or the file that holds it, or that is damaged, or it has
                another shape.
        """
        return self._file(name, shape).read(name, self._device, dtype)

    def int8(self, name: str, shape: Shape) -> tuple[Tensor, Tensor]:
        """A matrix as int8 with its scales, on the device: as they are stored, or quantised now.

        Raises:
            UnsupportedModelError: as ``read``.
        """
        scales = name.removesuffix("weight") + SCALES
        if scales in self:
            return self.read(name, torch.int8, shape), self.read(scales, torch.float32, shape[:1])
        return quantize(self._file(name, shape).read(name, CPU), self._device)

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            file.close()

    def _file(self, name: str, shape: Shape) -> TensorFile:
        """The open file that holds a tensor; of the right shape, or its values would go to the wrong places."""
        file = self._opened(name)
        found = file.shape(name)
        if found != [*shape]:
            raise UnsupportedModelError(
                f"{name!r} in {self._path} has the shape {found}, but the model that config.json describes needs "
                f"{[*shape]}"
            )
        return file

    def _opened(self, name: str) -> TensorFile:
        if name not in self._files:
            raise UnsupportedModelError(f"{self._path} lacks the tensor {name!r}")
        path = self._files[name]
        with self._opening:
            if path not in self._open:
                if not path.exists():
                    raise UnsupportedModelError(f"{self._path} lacks the file {path.name!r}, which holds {name!r}")
                self._open[path] = TensorFile(path)
            return self._open[path]


def check_files(path: Path) -> None:
    """Whether every file that the checkpoint's index names is there.

    Raises:
        UnsupportedModelError: names the first that is not.
    """
    missing = sorted({file.name for file in _indexed(path).values() if not file.exists()})
    if missing:
        raise UnsupportedModelError(f"{path} lacks the file {missing[0]!r}, which its index names")


def _indexed(path: Path) -> dict[str, Path]:
    """Tensor name -> file that holds it; empty for a checkpoint of one file."""
    index = path / INDEX
    if not index.exists():
        return {}
    weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
    return {name: path / file for name, file in weight_map.items()}
