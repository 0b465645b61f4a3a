"""Reads a checkpoint's small files and the headers of its weight files, without torch; refuses damaged files."""

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
    """Read the object in a JSON file.

    Raises:
        UnsupportedModelError: the file is missing, cannot be read, is no JSON, or contains another value.
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
    """Read the object in a checkpoint's generation_config.json; None if there is no such file or no JSON in it.

    Raises:
        UnsupportedModelError: the file contains another value, or is nested too deeply.
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
    """Raise UnsupportedModelError if a file that begins with ``begin`` is a pointer of Git LFS."""
    if begin.startswith(LFS_POINTER):
        raise UnsupportedModelError(
            f"{file} is a pointer of Git LFS, not the file itself; run `git lfs pull` in {file.parent}"
        )


def reason_of(error: BaseException) -> str:
    """Return a library's error message in one line of at most ``LONGEST_REASON`` characters."""
    text, kind = " ".join(str(error).split()), type(error).__name__
    if kind.startswith("StrictDataclass"):  # "Validation error for field 'x': TypeError: Field 'x' expected .."
        return text.partition("Error: ")[2][:LONGEST_REASON] or text[:LONGEST_REASON]
    return f"{kind}: {text}"[:LONGEST_REASON]


def refuse_tokenizer(path: Path, error: Exception | None = None) -> UnsupportedModelError:
    """Return the error for a tokenizer that did not load; names the first missing or damaged file.

    Args:
        path: checkpoint directory.
        error: of the library that loads tokenizers; None: it found no file.
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
    except Exception:  # the library raises no other class
        file = TOKENIZER
    return UnsupportedModelError(f"{path / file} describes no tokenizer that loads: {reason_of(error)}")


def check_format(path: Path) -> None:
    """Raise UnsupportedModelError if the directory has no weights in a supported format."""
    if not (path / SINGLE).exists() and not (path / INDEX).exists() and not refers_to_gguf(path):
        raise UnsupportedModelError(
            f"{path} has neither {SINGLE} nor {INDEX}: only safetensors checkpoints and .gguf files are read"
        )


def has_weight_files(path: Path) -> bool:
    """Return whether every weight file of the checkpoint's index or format exists.

    Raises:
        UnsupportedModelError: the index is no JSON object, or its ``weight_map`` is no table.
    """
    if refers_to_gguf(path):
        return Path(referred_file(path).path).exists()
    files = set(files_of_tensors(path).values()) or {SINGLE}
    return all((path / file).exists() for file in files)


def files_of_tensors(path: Path) -> dict[str, str]:
    """Return the file name of each tensor; empty for a checkpoint of one file.

    Raises:
        UnsupportedModelError: the index is no JSON object, or its ``weight_map`` is no table.
    """
    # transformers prefers the single file, too
    return {} if (path / SINGLE).exists() or not (path / INDEX).exists() else read_weight_map(path / INDEX)


def read_weight_map(index: Path) -> dict[str, str]:
    """Return the file name of each tensor in an index of weight files.

    Raises:
        UnsupportedModelError: the index is no JSON object, or its ``weight_map`` is no such table.
    """
    found = read_json_object(index).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(file, str) for file in found.values()):
        raise UnsupportedModelError(f"{index}: weight_map must be an object that maps names of tensors to file names")
    return found


def read_header(file: BinaryIO, path: Path) -> bytes:
    """Read the header of a newly opened safetensors file; the file is then at its first tensor.

    Raises:
        UnsupportedModelError: there is no header.
    """
    size = int.from_bytes(file.read(8), "little")
    header = file.read(size) if size <= LONGEST_HEADER else b""
    if not header or len(header) < size:
        raise headless(path)
    return header


def headless(path: Path) -> UnsupportedModelError:
    """Return the error for a file without a safetensors header, such as a pointer of Git LFS."""
    with path.open("rb") as file:
        begin = file.read(len(LFS_POINTER))
    check_not_pointer(path, begin)
    return UnsupportedModelError(f"{path} cannot be loaded: it does not begin with the header of a safetensors file")
