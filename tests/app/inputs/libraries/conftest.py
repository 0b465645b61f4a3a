"""A corpus, a snapshot of what the tiny model writes, and ``spectra generate`` in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from app.cli import main
from app.inputs import builtin_corpus, libraries
from tests.support.texts_to_look_up import GENERATE, SMALL, TALK, written


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test meets another one's snapshots; the command sets the number of threads of the process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    libraries._opened.cache_clear()
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "talk.jsonl").write_text(json.dumps(TALK))
    (folder / "note.txt").write_text("The river runs to the sea.")
    return folder


@pytest.fixture
def small_builtin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A built-in corpus that takes no time."""
    monkeypatch.setattr(builtin_corpus, "MAX_CHARS", SMALL)


@pytest.fixture
def generate(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[dict[str, Any], str]]:
    """``generate("--method", "rest", ...)``: the JSON line and stderr."""

    def run(*flags: object) -> tuple[dict[str, Any], str]:
        capsys.readouterr()
        assert main(["generate", "--model", str(tiny_checkpoint), *GENERATE, *map(str, flags)]) == 0
        said = capsys.readouterr()
        line: dict[str, Any] = json.loads(said.out)
        return line, said.err

    return run


@pytest.fixture
def refused(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The last line on stderr of ``spectra generate`` with a ``--retrieval`` that it refuses."""

    def run(*flags: object) -> str:
        capsys.readouterr()
        flags = ("--method", "rest", *flags)
        assert main(["generate", "--model", str(tiny_checkpoint), *GENERATE, *map(str, flags)]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        line = said.err.splitlines()[-1]
        assert line.startswith("spectra: --retrieval")
        return line

    return run


@pytest.fixture
def answer(generate: Any) -> list[int]:
    """What the tiny model writes behind the prompt."""
    line, _ = generate("--method", "autoregressive")
    ids: list[int] = line["token_ids"]
    return ids


@pytest.fixture
def snapshot(answer: list[int], tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A snapshot that knows the answer."""
    return written(answer, tiny_checkpoint, tmp_path / "snapshot")
