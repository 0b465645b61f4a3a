"""A build that is killed, interrupted or repeated scores nothing twice, and a whole snapshot is there at any time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app.corpus.build import CorpusTarget
from app.corpus.folders import locked, replace_folder, restore_folder
from app.corpus.inputs import Encoder
from retrieval_store.snapshots.corpus import Document
from retrieval_store.snapshots.snapshot import verify
from tests.app.corpus.conftest import Build, contents


def test_scores_are_kept_for_another_build_of_the_same_texts(
    build: Build, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--input", corpus, "--work", tmp_path / "work")
    assert build(*words, "--keep", 9).status == 0
    before = contents(tmp_path / "out")
    monkeypatch.setattr(CorpusTarget, "scorer", None)  # nothing is left to score
    assert build(*words, "--keep", 9, out=tmp_path / "again").status == 0
    assert contents(tmp_path / "again") == before
    assert build(*words, "--keep", 5, "--force").status == 0
    assert verify(tmp_path / "out").texts == 5
    report = json.loads((tmp_path / "out.report" / "report.json").read_text())
    assert 0 < report["tokens_scored_before"] < report["total"]["tokens"]
    monkeypatch.undo()
    (corpus / "code" / "one.py").write_text("another text of more than eight tokens\n" * 3)
    assert build(*words, "--keep", 9, out=tmp_path / "changed").status == 0
    assert len([path for path in (tmp_path / "work").iterdir() if path.is_dir()]) == 2  # the texts of both


def test_scoring_continues_where_it_was_interrupted(
    build: Build, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--input", corpus, "--keep", 9, "--batch-tokens", 300)
    batches: list[int] = []  # sizes of the batches of texts that are scored
    original = CorpusTarget.scorer

    def scorer(target: CorpusTarget) -> Any:
        def run(texts: Sequence[Any]) -> Any:
            if len(batches) == 3:
                raise KeyboardInterrupt
            batches.append(len(texts))
            return original(target)(texts)

        return run

    assert build(*words, out=tmp_path / "straight").status == 0
    monkeypatch.setattr(CorpusTarget, "scorer", scorer)
    assert build(*words).status == 130
    assert not (tmp_path / "out").exists()
    batches.append(0)
    assert build(*words).status == 0
    report = json.loads((tmp_path / "out.report" / "report.json").read_text())
    assert sum(batches) == sum(one["scored"] for one in report["inputs"])
    assert contents(tmp_path / "out") == contents(tmp_path / "straight")


def test_reading_continues_where_it_was_interrupted(
    build: Build, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.corpus.inputs.BATCH", 4)
    words = ("--input", corpus, "--keep", 9, "--unrefined")
    assert build(*words, out=tmp_path / "straight").status == 0
    read: list[str] = []
    original = Encoder.pieces

    def interrupted(encoder: Encoder, documents: Sequence[Document]) -> Any:
        if len(read) == 12:
            raise KeyboardInterrupt
        read.extend(document.origin for document in documents)
        return original(encoder, documents)

    monkeypatch.setattr(Encoder, "pieces", interrupted)
    assert build(*words).status == 130
    assert len(read) == 12
    read.append("more")
    assert build(*words).status == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "straight")
    assert len(read) == len(set(read)) == 2 + 32 + 1  # two files and 32 lines, each once


def test_a_build_touches_no_folder_of_others(build: Build, corpus: Path, tmp_path: Path) -> None:
    words = ("--input", corpus, "--keep", 5, "--unrefined")
    for folder, is_left in ((tmp_path / "out.work" / "mine", True), (tmp_path / ".out.77.partial", False)):
        folder.mkdir(parents=True)
        (folder / "file").touch()
        assert build(*words, "--force").status == 0
        assert folder.exists() == is_left
    assert [path.name for path in (tmp_path / "out.work").iterdir()] == ["mine"]
    with locked(tmp_path / "work"):
        ran = build(*words, "--work", tmp_path / "work", out=tmp_path / "second")
    assert ran.status == 2
    assert (
        ran.err.splitlines()[-1]
        == f"spectra: --work {tmp_path / 'work'}: another build uses the folder; wait for it, or name another"
    )
    assert build(*words, "--work", tmp_path / "work", out=tmp_path / "second").status == 0


def test_force_replaces_a_snapshot_and_nothing_else(build: Build, corpus: Path, tmp_path: Path) -> None:
    words = ("--input", corpus, "--unrefined", "--keep")
    assert build(*words, 5).status == 0
    ran = build(*words, 5)
    assert (ran.status, "--out" in ran.err and "--force" in ran.err) == (2, True)
    assert build(*words, 6, "--force").status == 0
    assert verify(tmp_path / "out").texts == 6
    (tmp_path / "home").mkdir()
    ran = build(*words, 5, "--force", out=tmp_path / "home")
    assert (ran.status, "is not a snapshot" in ran.err) == (2, True)
    assert (tmp_path / "home").is_dir()


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_while_a_snapshot_is_replaced_one_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, new = tmp_path / "out", tmp_path / "new"
    for folder in (out, new):
        folder.mkdir()
        (folder / folder.name).touch()
    with pytest.raises(FileNotFoundError):
        replace_folder(out, tmp_path / "nothing")
    assert files_of(tmp_path) == ["new/new", "out/out"]
    remove = shutil.rmtree

    def rmtree(folder: Path, **options: bool) -> None:
        assert (out / "new").exists()
        remove(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    replace_folder(out, new)
    assert files_of(tmp_path) == ["out/new"]
    out.rename(tmp_path / ".out.old")  # a killed build has put it aside
    for _ in range(2):
        restore_folder(out)
        assert files_of(tmp_path) == ["out/new"]
