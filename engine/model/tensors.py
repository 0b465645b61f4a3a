"""Tensors of a safetensors checkpoint, read one by one. Knows files and names, and nothing of models."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.model.quantized import SCALES, quantize

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class CheckpointTensors:
    """What a checkpoint directory holds; a tensor's bytes are read when it is asked for, and no others.

    Args:
        path: the directory, with one file or an index of several; files that no tensor is read from need not exist.
        device: where int8 weights are made.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        self._path = path
        self._device = device
        self._files = _files(path)

    def __contains__(self, name: str) -> bool:
        """Whether the checkpoint lists the tensor."""
        return name in self._files

    def read(self, name: str) -> Tensor:
        """A tensor, on the CPU, in the checkpoint's dtype.

        Raises:
            UnsupportedModelError: the checkpoint lacks it, or the file that holds it.
        """
        if name not in self._files:
            raise UnsupportedModelError(f"{self._path} lacks the tensor {name!r}")
        if not self._files[name].exists():
            raise UnsupportedModelError(f"{self._path} lacks the file {self._files[name].name!r}, which holds {name!r}")
        with safe_open(self._files[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def int8(self, name: str) -> tuple[Tensor, Tensor]:
        """A matrix as int8 with its scales, on the device: as they are stored, or quantised now.

        Raises:
            UnsupportedModelError: as ``read``.
        """
        scales = name.removesuffix("weight") + SCALES
        if scales in self:
            return self.read(name).to(self._device), self.read(scales).to(self._device, torch.float32)
        return quantize(self.read(name), self._device)


def check_files(path: Path) -> None:
    """Whether every file that the checkpoint's index names is there.

    Raises:
        UnsupportedModelError: names the first that is not.
    """
    missing = sorted({file.name for file in _files(path).values() if not file.exists()})
    if missing:
        raise UnsupportedModelError(f"{path} lacks the file {missing[0]!r}, which its index names")


def _files(path: Path) -> dict[str, Path]:
    """Tensor name -> file that holds it."""
    index = path / INDEX
    if index.exists():
        weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
        return {name: path / file for name, file in weight_map.items()}
    with safe_open(path / SINGLE, framework="pt") as file:
        return dict.fromkeys(file.keys(), path / SINGLE)
