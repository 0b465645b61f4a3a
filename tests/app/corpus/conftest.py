"""``spectra corpus build`` on a small corpus, and what its snapshots hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.spectra_command import CliRun, own_threads, run_cli

__all__ = ["own_threads"]

WORDS = ["snow", "falls", "on", "the", "quiet", "town", "while", "river", "keeps", "running", "over", "dogs", "and"]
Build = Callable[..., CliRun]


def sentence(random: np.random.Generator, n: int) -> str:
    return " ".join(random.choice(WORDS, n))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with conversations, texts and a tree of code."""
    random = np.random.default_rng(5)
    folder = tmp_path / "corpus"
    (folder / "code").mkdir(parents=True)
    talks = [[("user", sentence(random, 8)), ("assistant", sentence(random, 8 + i))] for i in range(30)]
    with (folder / "talk.jsonl").open("w") as file:
        for talk in [*talks, talks[3]]:  # one repeats another
            file.write(json.dumps({"messages": [{"role": r, "content": c} for r, c in talk]}) + "\n")
        file.write(json.dumps({"text": "no"}) + "\n")  # too short
    code = [f"def f{i}():\n    return {sentence(random, 12)!r}\n" for i in range(40)]
    (folder / "code" / "all.py").write_text("\n".join(code))  # is cut
    (folder / "code" / "one.py").write_text(code[0])
    (folder / "code" / "image.png").write_bytes(b"\x89PNG\0\xff")
    return folder


@pytest.fixture
def build(tiny_checkpoint: Path, tmp_path: Path) -> Build:
    """``build("--input", F)``: the snapshot goes to ``tmp_path/out``."""

    def run(*words: object, model: Path = tiny_checkpoint, out: Path = tmp_path / "out") -> CliRun:
        return run_cli("corpus", "build", "--threads", 1, "--out", out, "--model", model, *words)

    return run


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a snapshot; of the manifest all but the time at which it was written."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    manifest = json.loads(found["manifest.json"])
    del manifest["created"]
    return found | {"manifest.json": json.dumps(manifest).encode()}
