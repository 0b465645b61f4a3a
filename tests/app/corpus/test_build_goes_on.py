"""A build that is killed, interrupted or repeated: nothing is scored twice, and one whole snapshot is always there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.corpus.build import _bring_back, _replace
from app.corpus.inputs import Encoder
from retrieval_store.snapshots.corpus import Document
from retrieval_store.snapshots.snapshot import verify
from tests.app.corpus.conftest import Run, contents, sentence


def test_scores_are_kept_for_another_build_of_the_same_texts(
    spectra: Run, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--input", corpus, "--work", tmp_path / "work")
    assert spectra(*words, "--keep", 9)[0] == 0
    before = contents(tmp_path / "out")
    monkeypatch.setattr("app.corpus.build.scorer", None)  # nothing is left to score
    assert spectra(*words, "--keep", 9, out=tmp_path / "again")[0] == 0
    assert contents(tmp_path / "again") == before
    assert spectra(*words, "--keep", 5, "--force")[0] == 0
    assert verify(tmp_path / "out").texts == 5
    report = json.loads((tmp_path / "out.report" / "report.json").read_text())
    assert report["tokens_scored_before"] == report["phases"]["reading"].get("tokens", 0) + sum(
        one["tokens"] for one in report["inputs"]
    ) - (report["total"]["tokens"] - report["tokens_scored_before"])
    monkeypatch.undo()
    (corpus / "code" / "one.py").write_text("another text of more than eight tokens\n" * 3)
    assert spectra(*words, "--keep", 9, out=tmp_path / "changed")[0] == 0
    assert len([path for path in (tmp_path / "work").iterdir() if path.is_dir()]) == 2  # beside what was there


def score_file(work: Path) -> Path | None:
    return next(work.glob("texts-*/scores-*"), None)


def wait_for(what: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 400
    while not what():
        assert process.poll() is None, "the build ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_build_that_was_killed_goes_on(
    spectra: Run, corpus: Path, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(6)
    texts = corpus / "many.jsonl"
    texts.write_text("\n".join(json.dumps({"text": sentence(random, 60 + i % 90)}) for i in range(150)))
    words = [str(word) for word in ("--input", corpus, "--keep", 50, "--batch-tokens", 300)]
    assert spectra(*words, "--work", tmp_path / "whole", out=tmp_path / "straight")[0] == 0
    n_scores = (score_file(tmp_path / "whole") or Path()).stat().st_size
    command = [sys.executable, "-m", "app.cli", "corpus", "build", "--threads", "1", "--model", str(tiny_checkpoint)]
    command += ["--out", str(tmp_path / "out"), *words]
    work = tmp_path / "out.work"

    def killed_after(size: int) -> int:
        """Scores, in bytes, that a build which was killed has left."""
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
        wait_for(lambda: (found := score_file(work)) is not None and found.stat().st_size > size, process)
        process.send_signal(signal.SIGKILL)
        assert process.wait(120) == -signal.SIGKILL
        found = score_file(work)
        assert found is not None
        return found.stat().st_size

    first = killed_after(0)
    second = killed_after(first + 80)
    assert 0 < first < second < n_scores
    assert not (tmp_path / "out").exists()
    left = (score_file(work) or Path()).read_bytes()
    scored: list[int] = []
    from app.corpus import build as module

    original = module.scorer

    def counted(*given: Any) -> Any:
        run = original(*given)
        return lambda texts: scored.append(len(texts)) or run(texts)

    monkeypatch.setattr(module, "scorer", counted)
    assert spectra(*words, "--work", work)[0] == 0  # the default folder, which a named one keeps
    assert contents(tmp_path / "out") == contents(tmp_path / "straight")
    scores = (score_file(work) or Path()).read_bytes()
    assert scores == (score_file(tmp_path / "whole") or Path()).read_bytes()
    assert scores.startswith(left)
    assert 0 < sum(scored) == (n_scores - second) // 8  # not one text of the killed runs again


def test_reading_goes_on_where_it_was_interrupted(
    spectra: Run, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.corpus.inputs.BATCH", 4)
    words = ("--input", corpus, "--keep", 9)
    assert spectra(*words, out=tmp_path / "straight")[0] == 0
    read: list[str] = []
    original = Encoder.pieces

    def interrupted(encoder: Encoder, documents: Sequence[Document]) -> Any:
        if len(read) == 12:
            raise KeyboardInterrupt
        read.extend(document.origin for document in documents)
        return original(encoder, documents)

    monkeypatch.setattr(Encoder, "pieces", interrupted)
    assert spectra(*words)[0] == 130
    assert len(read) == 12
    read.append("more")
    assert spectra(*words)[0] == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "straight")
    assert len(read) == len(set(read)) == 2 + 32 + 1  # two files and 32 lines, each once


def test_what_is_no_builds_stays(spectra: Run, corpus: Path, tmp_path: Path) -> None:
    for folder, is_left in ((tmp_path / "out.work" / "mine", True), (tmp_path / ".out.77.partial", False)):
        folder.mkdir(parents=True)
        (folder / "file").touch()
        assert spectra("--input", corpus, "--keep", 5, "--force")[0] == 0
        assert folder.exists() == is_left
    assert [path.name for path in (tmp_path / "out.work").iterdir()] == ["mine"]


def test_two_builds_do_not_share_a_work_folder(spectra: Run, corpus: Path, tmp_path: Path) -> None:
    from app.corpus.work import WorkFolder

    with WorkFolder(tmp_path / "work", is_kept=True):
        status, _, err = spectra("--input", corpus, "--keep", 5, "--work", tmp_path / "work")
    assert status == 2
    assert err.splitlines()[-1] == f"spectra: --work {tmp_path / 'work'}: another build uses the folder"
    assert spectra("--input", corpus, "--keep", 5, "--work", tmp_path / "work")[0] == 0


def test_while_a_snapshot_is_replaced_one_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, new = tmp_path / "out", tmp_path / "new"
    for folder in (out, new):
        folder.mkdir()
        (folder / folder.name).touch()
    with pytest.raises(FileNotFoundError):
        _replace(out, tmp_path / "nothing")
    assert contents_of(tmp_path) == ["new/new", "out/out"]
    remove = shutil.rmtree

    def rmtree(folder: Path, **options: bool) -> None:
        assert (out / "new").exists()
        remove(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    _replace(out, new)
    assert contents_of(tmp_path) == ["out/new"]


def test_a_snapshot_that_was_put_aside_is_brought_back(tmp_path: Path) -> None:
    (tmp_path / ".out.old").mkdir()
    (tmp_path / ".out.old" / "file").touch()
    for _ in range(2):
        _bring_back(tmp_path / "out")
        assert contents_of(tmp_path) == ["out/file"]


def contents_of(folder: Path) -> list[str]:
    """Paths of all files below."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_force_replaces_a_snapshot_and_nothing_else(spectra: Run, corpus: Path, tmp_path: Path) -> None:
    words = ("--input", corpus, "--keep", 5)
    assert spectra(*words)[0] == 0
    status, _, err = spectra(*words)
    assert (status, "--out" in err and "--force" in err) == (2, True)
    assert spectra("--input", corpus, "--keep", 6, "--force")[0] == 0
    assert verify(tmp_path / "out").texts == 6
    (tmp_path / "home").mkdir()
    status, _, err = spectra(*words, "--force", out=tmp_path / "home")
    assert (status, "is no snapshot" in err) == (2, True)
    assert (tmp_path / "home").is_dir()
