"""``spectra vocabulary read``, and that the other commands find what it kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from app.composition.speculation import served_speculators
from app.config.serve import ServeConfig
from app.speculation.vocabulary import known_rows, rows_file
from engine.model.loader import load_spec
from tests.support.cli_run import run_cli


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test touches the user's cache; the command sets the number of threads of the process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_what_was_read_once_is_drafted_with_from_then_on(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = load_spec(tiny_checkpoint)
    assert known_rows(tiny_checkpoint, spec) is None
    done = run_cli(capsys, "vocabulary", "read", "--model", tiny_checkpoint, "--stages", 2)
    file = rows_file(tiny_checkpoint)
    assert done.status == 0
    assert f"{spec.vocab_size} tokens" in done.out
    assert str(file) in done.out
    rows = known_rows(tiny_checkpoint, spec)
    assert rows is not None
    assert rows.ids.shape == (spec.vocab_size, 16)
    served = served_speculators(ServeConfig(model=str(tiny_checkpoint)))
    assert served.vocabulary is not None
    assert (served.vocabulary.ids == rows.ids).all()


def test_a_broken_file_is_named_and_drafting_goes_on_without(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rows_file(tiny_checkpoint)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"half")
    assert known_rows(tiny_checkpoint, load_spec(tiny_checkpoint)) is None
    assert str(file) in capsys.readouterr().err
