"""Reads a checkpoint's small files and the headers of its weight files. A damaged file is refused in one sentence.

Knows files, and nothing of models. Imports no torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

from tokenizers import Tokenizer

from engine.errors import UnsupportedModelError
from engine.model.gguf.folder import referred_file, refers_to_gguf

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
ADAPTER = "adapter_config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
LONGEST_HEADER = 100_000_000  # bytes, safetensors' own limit
LONGEST_REASON = 300  # characters
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def read_json_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        UnsupportedModelError: the file is missing, cannot be read, is no JSON, or holds another value.
    """
    try:
        raw = file.read_bytes()
    except FileNotFoundError as error:
        raise UnsupportedModelError(f"{file.parent} lacks the file {file.name!r}") from error
    except OSError as error:
        raise UnsupportedModelError(f"{file} cannot be read: {error.strerror}") from error
    check_not_pointer(file, raw)
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        reason = f"is no JSON: {error}" if raw.strip() else "is empty; it must hold a JSON object"
        raise UnsupportedModelError(f"{file} {reason}") from error
    return _checked_object(file, value)


def _checked_object(file: Path, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UnsupportedModelError(f"{file} holds a value of type {type(value).__name__}; it must be a JSON object")
    return value


def read_generation_config(path: Path) -> dict[str, Any] | None:
    """The object in a checkpoint's generation_config.json; None if there is no such file or no JSON in it.

    Raises:
        UnsupportedModelError: the file holds another value, or one that is nested too deeply.
    """
    file = path / GENERATION_CONFIG
    try:
        value = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None  # transformers ignores the file too
    except RecursionError as error:
        raise UnsupportedModelError(f"{file} is nested too deeply") from error
    return _checked_object(file, value)


def check_not_pointer(file: Path, begin: bytes) -> None:
    """Raises UnsupportedModelError if a file that begins with ``begin`` is a pointer of Git LFS."""
    if begin.startswith(LFS_POINTER):
        raise UnsupportedModelError(
            f"{file} is a pointer of Git LFS, not the file itself; run `git lfs pull` in {file.parent}"
        )


def reason_of(error: BaseException) -> str:
    """The text of a library's error in one line of at most ``LONGEST_REASON`` characters."""
    text, kind = " ".join(str(error).split()), type(error).__name__
    if kind.startswith("StrictDataclass"):  # "Validation error for field 'x': TypeError: Field 'x' expected .."
        return text.partition("Error: ")[2][:LONGEST_REASON] or text[:LONGEST_REASON]
    return f"{kind}: {text}"[:LONGEST_REASON]


def refuse_tokenizer(path: Path, error: Exception | None = None) -> UnsupportedModelError:
    """The error of a checkpoint whose tokenizer was not loaded: names the first file that is missing or damaged.

    Args:
        path: of the checkpoint directory.
        error: of the library that loads tokenizers; None: it has found no file.
    """
    if not (path / TOKENIZER).exists() or error is None:
        return UnsupportedModelError(f"{path} has no tokenizer: it lacks the file {TOKENIZER!r}")
    try:
        for name in (TOKENIZER, SETTINGS):
            if (path / name).exists():
                read_json_object(path / name)
    except UnsupportedModelError as damaged:
        return damaged
    file = SETTINGS
    try:
        Tokenizer.from_file(str(path / TOKENIZER))
    except Exception:  # it raises nothing else
        file = TOKENIZER
    return UnsupportedModelError(f"{path / file} describes no tokenizer that loads: {reason_of(error)}")


def check_format(path: Path) -> None:
    """Raises UnsupportedModelError if the directory holds no weights in a format that is read."""
    if not (path / SINGLE).exists() and not (path / INDEX).exists() and not refers_to_gguf(path):
        raise UnsupportedModelError(
            f"{path} has neither {SINGLE} nor {INDEX}: only safetensors checkpoints and .gguf files are read"
        )


def has_weight_files(path: Path) -> bool:
    """Whether every weight file is there that the checkpoint's index or format names; their contents are not read.

    Raises:
        UnsupportedModelError: the index is no JSON object, or its ``weight_map`` is no table.
    """
    if refers_to_gguf(path):
        return Path(referred_file(path).path).exists()
    files = set(files_of_tensors(path).values()) or {SINGLE}
    return all((path / file).exists() for file in files)


def files_of_tensors(path: Path) -> dict[str, str]:
    """Tensor name -> name of the file that holds it; empty for a checkpoint of one file.

    Raises:
        UnsupportedModelError: the index is no JSON object, or its ``weight_map`` is no table.
    """
    # transformers prefers the single file, too
    return {} if (path / SINGLE).exists() or not (path / INDEX).exists() else read_weight_map(path / INDEX)


def read_weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> file name, as an index of weight files has them.

    Raises:
        UnsupportedModelError: the index is no JSON object, or its ``weight_map`` is no such table.
    """
    found = read_json_object(index).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(file, str) for file in found.values()):
        raise UnsupportedModelError(f"{index}: weight_map must be an object that maps names of tensors to file names")
    return found


def read_header(file: BinaryIO, path: Path) -> bytes:
    """The header of a safetensors file that has just been opened; the file then stands at its first tensor.

    Raises:
        UnsupportedModelError: there is none.
    """
    size = int.from_bytes(file.read(8), "little")
    header = file.read(size) if size <= LONGEST_HEADER else b""
    if not header or len(header) < size:
        raise headless(path)
    return header


def headless(path: Path) -> UnsupportedModelError:
    """The error of a file without the header of a safetensors file: names a pointer of Git LFS as such."""
    with path.open("rb") as file:
        begin = file.read(len(LFS_POINTER))
    check_not_pointer(path, begin)
    return UnsupportedModelError(f"{path} cannot be loaded: it does not begin with the header of a safetensors file")
