"""Methods are compiled once per machine: by one process at a time, and during the first start of a server."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from engine.kept_files import cache_folder, hold_lock
from speculators import kernels


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder()


def test_a_server_compiles_in_a_process_unless_the_cache_has_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Mock()
    monkeypatch.setattr(kernels, "_code_folder", lambda: tmp_path)
    monkeypatch.setattr(subprocess, "Popen", start)
    assert kernels.start_compiling() is start.return_value
    code = "import spectra_serve; from speculators.kernels import compile_kernels; compile_kernels()"
    assert start.call_args.args == ([sys.executable, "-Pc", code],)  # -P: the user's folder has no say
    (tmp_path / "growth.draft-53.py311.nbi").touch()
    assert kernels.start_compiling() is None
    start.assert_called_once()


def test_compiled_code_is_found_where_numba_keeps_it() -> None:
    kernels.compile_kernels()
    assert kernels.start_compiling() is None


def test_one_process_compiles_while_others_wait(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draft() -> None:
        with (own_cache / "compiled.lock").open("w") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    monkeypatch.setattr(kernels, "_draft_once", draft)
    kernels.compile_kernels()
    with hold_lock(own_cache / "compiled"):  # free again
        pass


def test_a_cache_that_cannot_be_written_is_no_error(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache.parent.write_text("a file where the folder would be")
    drafts: list[Any] = []
    monkeypatch.setattr(kernels, "_draft_once", lambda: drafts.append(1))
    kernels.compile_kernels()
    assert drafts == [1]
