"""The cache folder of the user, and the hashes by which models and tokenizers are told apart."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

SAMPLES = 16  # places of every weight file that are read
SAMPLE = 4096  # bytes at each


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/spectra-serve``, by default ``~/.cache/spectra-serve``; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "spectra-serve"


def model_hash(path: Path) -> str:
    """A model's hash: configuration, names and sizes of the weight files, and samples of their bytes.

    Samples, because a fine-tuned model differs from its base in nothing else, and all bytes would take minutes.
    """
    digest = hashlib.sha256((path / "config.json").read_bytes())
    for file in sorted(path.glob("*.safetensors")):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}\n".encode())
        with file.open("rb") as weights:
            for place in range(SAMPLES):
                weights.seek(place * max(0, size - SAMPLE) // (SAMPLES - 1))
                digest.update(weights.read(SAMPLE))
    return digest.hexdigest()[:32]


def tokenizer_hash(path: Path) -> str:
    """A tokenizer's hash: what decides which ids a text has. Two models with one tokenizer have one hash.

    Raises:
        OSError: the folder has no ``tokenizer.json``.
    """
    return hashlib.sha256((path / "tokenizer.json").read_bytes()).hexdigest()[:32]
