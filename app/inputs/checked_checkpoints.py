"""Remembers which checkpoints have passed all checks; later starts load neither torch nor transformers for them."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

import msgspec

from app.inputs.models import read_checkpoint
from engine import model
from engine.errors import UnsupportedModelError
from engine.kept_files import cache_folder, keep_json
from engine.model.identity import file_hashes
from engine.model.spec import ModelSpec

READERS = ("spectra-serve", "torch", "transformers", "tokenizers", "safetensors", "gguf", "jinja2")
TEXTS = (".json", ".jinja", ".model", ".txt")  # suffixes of the files that config and tokenizer are read from


def checked_spec(path: Path, *, has_weights: bool) -> ModelSpec:
    """Return the spec of a checkpoint directory that passes the checks of ``read_checkpoint``, or has passed them.

    Raises:
        UnsupportedModelError: as ``read_checkpoint``.
    """
    files = _records(path, has_weights)
    known = _read(files[-1])
    if known is not None:
        return known
    spec, _ = read_checkpoint(path, has_weights=has_weights)
    if files == _records(path, has_weights):  # else files changed meanwhile
        for file in filter(None, files):
            keep_json(file, msgspec.to_builtins(spec), "the checks of a model")
    return spec


def spec_of(path: Path) -> ModelSpec:
    """Return the spec of a checkpoint directory: a remembered one, or read now.

    Raises:
        UnsupportedModelError: as ``load_spec``.
    """
    known = _read(_record(path, has_weights=False))
    if known is not None:
        return known
    from engine.model.loader import load_spec

    return load_spec(path)


@cache
def _checks() -> bytes:
    """Return a digest of the code that checks: our sources, and versions of the packages that they use."""
    digest = hashlib.sha256(" ".join(map(version, READERS)).encode())
    for file in sorted(Path(model.__path__[0]).rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.digest()


def _records(path: Path, has_weights: bool) -> list[Path | None]:
    return [_record(path, has_weights=False), *([_record(path, has_weights=True)] if has_weights else [])]


def _read(file: Path | None) -> ModelSpec | None:
    try:
        return None if file is None else msgspec.json.decode(file.read_bytes(), type=ModelSpec)
    except (OSError, msgspec.DecodeError):
        return None


def _record(path: Path, has_weights: bool) -> Path | None:
    """Return the file of a checkpoint's record, named after all that the checks read; None: a file cannot be read."""
    digest = hashlib.sha256(_checks())
    try:
        for file in sorted(path.rglob("*")):
            if file.suffix in TEXTS:
                digest.update(f"\n{file.relative_to(path)}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
        if has_weights:
            digest.update(msgspec.json.encode(file_hashes(path)))
    except (OSError, UnsupportedModelError):
        return None
    return cache_folder() / "checked" / f"{digest.hexdigest()[:32]}.json"
