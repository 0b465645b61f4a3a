"""The built-in texts: built once per tokenizer, and only where they are asked for."""

from __future__ import annotations

import logging
import multiprocessing
import os
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest

from app.composition.retrieval import library
from app.composition.speculation import speculator_options
from app.config.serve import ServeConfig
from app.demo.paths import DEMO_TARGET
from app.inputs import builtin_corpus
from app.inputs.builtin_corpus import builtin_snapshot
from app.inputs.current_snapshot import snapshot_folder
from app.inputs.libraries import LibraryAt, prepare
from app.inputs.tokenizers import load_tokenizer
from app.serving.preflight import check_model
from engine.errors import ConfigError, UnsupportedModelError
from engine.kept_files import cache_folder
from engine.model.identity import tokenizer_hash
from retrieval_store.index.index import Limits
from retrieval_store.snapshots.snapshot import read_manifest
from retrieval_store.snapshots.snapshot_index import open_snapshot
from speculators.pool import SpeculatorPool
from tests.support.texts_to_look_up import SMALL

INDEXING = "Indexing Python's standard library, which spectra and rest draft from (once) ..."

# -- the built-in snapshot


def test_the_built_in_snapshot_is_built_once_per_tokenizer(
    small_builtin: None, tiny_checkpoint: Path, capsys: Any
) -> None:
    folder = builtin_snapshot(DEMO_TARGET)
    assert folder.parent == cache_folder() / "snapshots"
    assert capsys.readouterr().err.splitlines()[0] == INDEXING
    written_at = folder.stat().st_mtime_ns
    assert builtin_snapshot(DEMO_TARGET) == folder
    assert folder.stat().st_mtime_ns == written_at
    assert capsys.readouterr().err == ""
    assert builtin_snapshot(tiny_checkpoint) != folder
    tokenizer = load_tokenizer(DEMO_TARGET)
    ids = tokenizer.backend_tokenizer.encode(topics["import"][:80], add_special_tokens=False).ids
    found = open_snapshot(folder, tokenizer_hash(DEMO_TARGET)).query(np.array(ids[:-1], np.int32), Limits())
    assert found is not None
    assert found.tokens


def test_the_built_in_corpus_is_bounded_and_holds_no_installed_packages() -> None:
    texts = list(builtin_corpus.documents())
    code = [text for text in texts if not text.origin.startswith("topic ")]
    assert sum(len(text.text) for text in code) <= builtin_corpus.MAX_CHARS
    assert sum(len(text.text) for text in code) > 0.9 * builtin_corpus.MAX_CHARS
    assert not any("site-packages" in text.origin for text in code)
    assert any("import" in text.origin for text in texts if text not in code)


def _build(model: str) -> str:
    builtin_corpus.MAX_CHARS = SMALL
    return str(builtin_snapshot(Path(model)))


def test_processes_that_ask_at_once_build_one_snapshot(tiny_checkpoint: Path) -> None:
    with multiprocessing.get_context("fork").Pool(3) as pool:
        folders = pool.map(_build, [str(tiny_checkpoint)] * 3)
    assert len(set(folders)) == 1
    assert [path.name for path in snapshot_folder().iterdir() if path.is_dir()] == [Path(folders[0]).name]


def test_a_damaged_or_half_built_snapshot_is_built_again(small_builtin: None, tiny_checkpoint: Path) -> None:
    folder = builtin_snapshot(tiny_checkpoint)
    version = read_manifest(folder).version
    name = next(iter(read_manifest(folder).files))
    os.truncate(folder / name, 3)
    left_over = folder.with_name(f".{folder.name}.1.partial")
    left_over.mkdir()
    assert read_manifest(builtin_snapshot(tiny_checkpoint)).version == version
    open_snapshot(folder)
    assert not left_over.exists()


@pytest.mark.parametrize(
    ("given", "where"), [({}, "builtin"), ({"retrieval": "none"}, None), ({"model": "elsewhere"}, None)], ids=str
)
def test_only_the_demo_model_has_it_by_default(given: dict[str, Any], where: str | None) -> None:
    found = library(ServeConfig(**given))
    assert (found and found.where) == where


@pytest.mark.parametrize(
    ("given", "drafts"),
    [
        ({}, False),
        ({"retrieval": "builtin"}, True),
        ({"auto": {"retrieval": True}}, True),
        ({"retrieval": "none"}, True),
    ],
)
def test_auto_drafts_from_built_in_texts_only_where_a_flag_asks_for_them(given, drafts):
    assert speculator_options(ServeConfig(**given)).auto.retrieval is drafts


def test_a_server_without_a_place_for_it_starts_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    config = ServeConfig()
    with caplog.at_level(logging.WARNING):
        prepare(library(config))
        pool = SpeculatorPool(speculator_options(config))
    assert "retrieval from builtin is left out" in caplog.text
    assert pool.needs("spectra") is not None
    with pytest.raises(ConfigError, match=r"--retrieval builtin: .*file"):
        prepare(library(ServeConfig(retrieval="builtin")))


def test_a_server_builds_it_before_it_starts_and_leaves_text_and_stores_alone(
    small_builtin: None, corpus: Path, tmp_path: Path, snapshot: Path
) -> None:
    prepare(library(ServeConfig()))
    assert list(snapshot_folder().glob("builtin-*/manifest.json"))
    (corpus / "bad.jsonl").write_text('{"no": "form"}')
    prepare(library(ServeConfig(retrieval=str(corpus))))  # is read by replicas
    prepare(library(ServeConfig(retrieval="redis://127.0.0.1:1")))  # may come up later
    with pytest.raises(ConfigError, match=r"--retrieval .*tokenizer"):
        prepare(library(ServeConfig(retrieval=str(snapshot))))


def test_a_server_of_the_demo_model_builds_it_among_its_checks(small_builtin: None, capsys: Any) -> None:
    check_model(ServeConfig(method="spectra"), is_local=True)
    assert INDEXING in capsys.readouterr().err
    assert list(snapshot_folder().glob("builtin-*/manifest.json"))


def test_a_tokenizer_without_its_file_is_named(snapshot: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.json"):
        LibraryAt(str(snapshot), str(tmp_path / "model"))()
