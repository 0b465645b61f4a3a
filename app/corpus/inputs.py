"""The inputs of a corpus: names, sizes, hashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError
from retrieval_store.snapshots.corpus import CorpusError, corpus_hash


@dataclass(frozen=True, slots=True)
class Input:
    """One ``--input`` as it is now."""

    name: str  # as it was given
    path: Path
    sha256: str
    bytes: int


def read_inputs(paths: Sequence[Path]) -> list[Input]:
    """Every input with its hash; reads all bytes once.

    Raises:
        ConfigError: one cannot be read.
    """
    found = []
    for path in paths:
        try:
            found.append(Input(str(path), path.resolve(), *corpus_hash(path)))
        except CorpusError as error:
            raise ConfigError(f"--input {error}") from error
    return found
