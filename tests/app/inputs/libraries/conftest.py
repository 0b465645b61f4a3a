"""A corpus, a snapshot of what the tiny model writes, and ``spectra generate``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.inputs import builtin_corpus, libraries
from engine.model.identity import tokenizer_hash
from retrieval_store.snapshots.snapshot import Description
from retrieval_store.snapshots.snapshot_writer import write_snapshot
from tests.support.spectra_command import CliRun, own_cache, own_threads, run_cli

__all__ = ["own_cache", "own_threads"]

TALK = {"messages": [{"role": "user", "content": "Sing."}, {"role": "assistant", "content": "Snow falls on the town."}]}

Generate = Callable[..., CliRun]


def write(ids: list[int], model: Path, folder: Path) -> Path:
    """A snapshot of one text."""
    about = Description(tokenizer_hash=tokenizer_hash(model), vocab_size=320)
    write_snapshot([np.array(ids, np.int32)], folder, about)
    return folder


@pytest.fixture(autouse=True)
def own_snapshots(own_cache: Path) -> None:
    libraries._opened.cache_clear()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "talk.jsonl").write_text(json.dumps(TALK))
    (folder / "note.txt").write_text("The river runs to the sea.")
    return folder


@pytest.fixture
def small_builtin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A built-in corpus of few characters."""
    monkeypatch.setattr(builtin_corpus, "MAX_CHARS", 20_000)


@pytest.fixture(scope="module")
def generate(tiny_checkpoint: Path) -> Generate:
    prompt = ("--prompt", "The quick brown fox", "--raw", "--max-tokens", 40, "--json")
    return lambda *flags: run_cli("generate", "--model", tiny_checkpoint, *prompt, *flags)


@pytest.fixture(scope="module")
def answer(generate: Generate) -> list[int]:
    """What the tiny model writes."""
    ids: list[int] = generate("--method", "autoregressive").document["token_ids"]
    return ids


@pytest.fixture
def snapshot(answer: list[int], tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A snapshot that knows the answer."""
    return write(answer, tiny_checkpoint, tmp_path / "snapshot")
