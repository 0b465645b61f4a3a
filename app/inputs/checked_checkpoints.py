"""Remembers which checkpoints have passed all checks; later starts load neither torch nor transformers for them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from app.inputs.models import read_checkpoint
from app.version import SOFTWARE
from engine.errors import UnsupportedModelError
from engine.kept_files import cache_folder, keep_json
from engine.model.identity import file_hashes
from engine.model.spec import ModelSpec

CHECKS = 1  # grows when the checks refuse more, or a spec says more
TEXTS = (".json", ".jinja", ".model", ".txt")  # suffixes of the files that config and tokenizer are read from


def checked_spec(path: Path, *, has_weights: bool) -> ModelSpec:
    """Return the spec of a checkpoint directory that passes the checks of ``read_checkpoint``, or has passed them.

    Raises:
        UnsupportedModelError: as ``read_checkpoint``.
    """
    known = _read(path, has_weights)
    if known is not None:
        return known
    spec, _ = read_checkpoint(path, has_weights=has_weights)
    for includes_weights in {False, has_weights}:
        if (file := _record(path, includes_weights)) is not None:
            keep_json(file, msgspec.to_builtins(spec), "the checks of a model")
    return spec


def spec_of(path: Path) -> ModelSpec:
    """Return the spec of a checkpoint directory: a remembered one, or read now.

    Raises:
        UnsupportedModelError: as ``load_spec``.
    """
    known = _read(path, has_weights=False)
    if known is not None:
        return known
    from engine.model.loader import load_spec

    return load_spec(path)


def _read(path: Path, has_weights: bool) -> ModelSpec | None:
    file = _record(path, has_weights)
    try:
        return None if file is None else msgspec.json.decode(file.read_bytes(), type=ModelSpec)
    except (OSError, msgspec.DecodeError):
        return None


def _record(path: Path, has_weights: bool) -> Path | None:
    """Return the file of a checkpoint's record, named after all that the checks read; None: a file cannot be read."""
    digest = hashlib.sha256(f"{CHECKS} {SOFTWARE}".encode())
    try:
        for file in sorted(path.iterdir()):
            if file.suffix in TEXTS:
                digest.update(f"\n{file.name}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
        if has_weights:
            digest.update(msgspec.json.encode(file_hashes(path)))
    except (OSError, UnsupportedModelError):
        return None
    return cache_folder() / "checked" / f"{digest.hexdigest()[:32]}.json"
