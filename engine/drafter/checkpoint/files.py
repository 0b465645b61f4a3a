"""Reads the files of a drafter's checkpoint: config.json, and all tensors by their stored names."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import ConfigError, UnsupportedModelError
from engine.model.checkpoint_files import CONFIG, read_json_object, read_weight_map
from engine.model.weights.tensors import read_file


def read_config(folder: Path) -> dict[str, Any]:
    """The object in a folder's config.json.

    Raises:
        ConfigError: there is no such file, or it holds no object.
    """
    try:
        return read_json_object(folder / CONFIG)
    except UnsupportedModelError as error:
        raise ConfigError(f"{folder} holds no drafter: {error}") from error


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint, on the CPU, in its stored dtype: from safetensors, or else from pickles.

    Raises:
        UnsupportedModelError: there are no weights, a file of the index is missing, or a file is damaged.
    """
    for pattern, read in _READERS.items():
        files = _find_files(folder, pattern)
        if files:
            return {name: tensor for file in files for name, tensor in read(file).items()}
    raise UnsupportedModelError(f"{folder} holds no weights; supported are {', '.join(_READERS)}, indexed or not")


def _find_files(folder: Path, pattern: str) -> list[Path]:
    for index in sorted(folder.glob(f"{pattern}.index.json")):
        names = set(read_weight_map(index).values())
        missing = sorted(name for name in names if not (folder / name).is_file())
        if missing:
            raise UnsupportedModelError(f"{folder} lacks the file {missing[0]!r}, which {index.name} names")
        return sorted(folder / name for name in names)
    return sorted(folder.glob(pattern))


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise UnsupportedModelError(f"{path} holds other objects than tensors, or is damaged: {error}") from error
    if not isinstance(stored, Mapping) or not all(isinstance(value, Tensor) for value in stored.values()):
        raise UnsupportedModelError(f"{path} does not map names to tensors")
    return {str(name): tensor for name, tensor in stored.items()}


_READERS: dict[str, Callable[[Path], dict[str, Tensor]]] = {
    "*.safetensors": read_file,
    "pytorch_model*.bin": _read_pickle,
    "*_lm_head.pt": _read_pickle,
}
