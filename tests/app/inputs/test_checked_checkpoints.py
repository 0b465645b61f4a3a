"""A checkpoint that has passed its checks is not read again until one of its files changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from app.inputs import checked_checkpoints
from app.inputs.checked_checkpoints import checked_spec, spec_of
from app.inputs.models import read_checkpoint
from engine.errors import UnsupportedModelError


@pytest.fixture
def checked(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the tiny checkpoint that has passed its checks, in a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint, folder)
    assert checked_spec(folder, has_weights=True) == read_checkpoint(folder)[0]
    return folder


def test_an_unchanged_checkpoint_is_read_once(checked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, _ = read_checkpoint(checked)
    monkeypatch.delattr(checked_checkpoints, "read_checkpoint")
    assert (
        checked_spec(checked, has_weights=True) == checked_spec(checked, has_weights=False) == spec_of(checked) == spec
    )


def test_a_changed_config_is_read(checked: Path) -> None:
    config = json.loads((checked / "config.json").read_text())
    (checked / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 77}))
    assert spec_of(checked).max_positions == checked_spec(checked, has_weights=True).max_positions == 77


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_file_that_was_cut_short_is_refused(name: str, checked: Path) -> None:
    file = checked / name
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(UnsupportedModelError, match=name):
        checked_spec(checked, has_weights=True)


def test_a_damaged_record_is_replaced(checked: Path, tmp_path: Path) -> None:
    records = [*(tmp_path / "cache").rglob("checked/*.json")]
    assert len(records) == 2
    for record in records:
        record.write_text("{")
    assert checked_spec(checked, has_weights=True) == read_checkpoint(checked)[0]
    assert all(json.loads(record.read_text()) for record in records)
