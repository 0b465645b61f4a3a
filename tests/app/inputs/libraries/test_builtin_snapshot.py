"""The built-in texts are built once per tokenizer, and only where they are requested."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest

from app.composition.retrieval import library
from app.composition.speculation import speculator_options
from app.config.serve import ServeConfig
from app.inputs import builtin_corpus
from app.inputs.builtin_corpus import builtin_snapshot
from app.inputs.libraries import LibraryAt, library_at, prepare
from app.inputs.stores import snapshot_folder
from app.inputs.tokenizers import load_tokenizer
from app.serving.preflight import check_model
from engine.errors import ConfigError, UnsupportedModelError
from engine.kept_files import cache_folder
from engine.model.identity import tokenizer_hash
from retrieval_store.index.index import Limits
from retrieval_store.snapshots.snapshot import read_manifest
from retrieval_store.snapshots.snapshot_index import open_snapshot
from speculators.auto.config import AutoConfig
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool
from tests.app.inputs.libraries.conftest import write
from tests.support.tiny_models import saved_checkpoint

INDEXING = "Indexing Python's standard library, which spectra and rest draft from (once) ..."


@pytest.mark.usefixtures("small_builtin")
def test_the_built_in_snapshot_is_built_once_per_tokenizer_and_again_when_damaged(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = builtin_snapshot(tiny_checkpoint)
    assert folder.parent == cache_folder() / "snapshots"
    assert capsys.readouterr().err.splitlines()[0] == INDEXING
    written_at = folder.stat().st_mtime_ns
    assert builtin_snapshot(tiny_checkpoint) == folder
    assert folder.stat().st_mtime_ns == written_at
    assert capsys.readouterr().err == ""
    assert builtin_snapshot(saved_checkpoint(400)) != folder
    tokenizer = load_tokenizer(tiny_checkpoint)
    ids = tokenizer.backend_tokenizer.encode(topics["import"][:80], add_special_tokens=False).ids
    found = open_snapshot(folder, tokenizer_hash(tiny_checkpoint)).query(np.array(ids[:-1], np.int32), Limits())
    assert found is not None
    assert found.tokens
    manifest = read_manifest(folder)
    os.truncate(folder / next(iter(manifest.files)), 3)
    left_over = folder.with_name(f".{folder.name}.1.partial")
    left_over.mkdir()
    assert read_manifest(builtin_snapshot(tiny_checkpoint)).version == manifest.version
    open_snapshot(folder)
    assert not left_over.exists()


def test_the_built_in_corpus_is_bounded_and_holds_no_installed_packages() -> None:
    texts = list(builtin_corpus.documents())
    code = [text for text in texts if not text.origin.startswith("topic ")]
    size = sum(len(text.text) for text in code)
    assert 0.9 * builtin_corpus.MAX_CHARS < size <= builtin_corpus.MAX_CHARS
    assert not any("site-packages" in text.origin for text in code)
    assert len(texts) > len(code)


@pytest.mark.parametrize(
    ("given", "where", "drafts"),
    [
        ({}, "builtin", False),
        ({"retrieval": "builtin"}, "builtin", True),
        ({"auto": {"retrieval": True}}, "builtin", True),
        ({"retrieval": "none"}, None, True),
        ({"model": "elsewhere"}, None, None),
    ],
)
def test_only_the_default_model_has_it_unasked_and_auto_only_where_it_is_requested(
    given: dict[str, Any], where: str | None, drafts: bool | None
) -> None:
    config = ServeConfig(**given)
    found = library(config)
    assert (found and found.where) == where
    if drafts is not None:
        assert speculator_options(config).settings_of(AutoConfig).retrieval is drafts


def test_a_server_that_cannot_keep_it_starts_without_it(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    model = str(tiny_checkpoint)
    optional = LibraryAt("builtin", model, is_optional=True)
    with caplog.at_level(logging.WARNING):
        prepare(optional)
        pool = SpeculatorPool(SpeculatorOptions(retrieval=optional))
    assert "retrieval from builtin is left out" in caplog.text
    assert pool.needs("spectra") is not None
    with pytest.raises(ConfigError, match=r"--retrieval builtin: .*file"):
        prepare(library_at("builtin", model))


@pytest.mark.usefixtures("small_builtin")
def test_a_server_builds_it_before_it_starts_and_leaves_texts_and_stores_to_its_replicas(
    corpus: Path, tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tiny_checkpoint)
    check_model(ServeConfig(model=model, method="spectra", retrieval="builtin"), is_local=True)
    assert INDEXING in capsys.readouterr().err
    assert list(snapshot_folder().glob("builtin-*/manifest.json"))
    (corpus / "bad.jsonl").write_text('{"no": "form"}')
    prepare(library_at(str(corpus), model))
    prepare(library_at("redis://127.0.0.1:1", model))  # the store may start later
    foreign = write([1, 2, 3], saved_checkpoint(400), tmp_path / "foreign")
    with pytest.raises(ConfigError, match=r"--retrieval .*tokenizer"):
        prepare(library_at(str(foreign), model))
    (tmp_path / "model").mkdir()
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.json"):
        LibraryAt(str(foreign), str(tmp_path / "model"))()
