"""``spectra vocabulary read``, and that servers find what it wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.composition.speculation import served_speculators
from app.config.serve import ServeConfig
from app.speculation.vocabulary import known_rows, rows_file
from engine.model.loader import load_spec
from tests.support.spectra_command import run_here


@pytest.mark.usefixtures("own_cache")
def test_rows_that_were_read_once_are_used_from_then_on_unless_the_file_is_broken(
    tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = load_spec(tiny_checkpoint)
    assert known_rows(tiny_checkpoint, spec) is None
    done = run_here("vocabulary", "read", "--model", tiny_checkpoint, "--stages", 2)
    file = rows_file(tiny_checkpoint)
    assert done.status == 0
    assert f"{spec.vocab_size} tokens" in done.out
    rows = known_rows(tiny_checkpoint, spec)
    assert rows is not None
    assert rows.ids.shape == (spec.vocab_size, 16)
    served = served_speculators(ServeConfig(model=str(tiny_checkpoint)))
    assert served.vocabulary is not None
    assert (served.vocabulary.ids == rows.ids).all()
    file.write_bytes(b"half")
    assert known_rows(tiny_checkpoint, spec) is None
    assert str(file) in capsys.readouterr().err
