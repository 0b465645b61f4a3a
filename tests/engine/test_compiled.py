"""Machine code is kept until a source changes that it was compiled from, in its own package or in one that it calls."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import engine.compiled

CALLER = """
from engine.compiled import compiled
from called.functions import increase

@compiled
def run(n):
    return {}
"""
CALLED = """
from engine.compiled import compiled

@compiled
def increase(n):
    return n + {}
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def cache_folder(packages: Path, caller: str, called: int) -> Path:
    """Write both packages, import them anew, and return the folder in which the caller's machine code is kept."""
    sources = {"caller/functions.py": CALLER.format(caller), "called/functions.py": CALLED.format(called)}
    for name, source in sources.items():
        file = packages / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(source)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("caller", "called")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    engine.compiled._cache_folder.cache_clear()
    return Path(importlib.import_module("caller.functions").run.stats.cache_path).parent


def test_machine_code_is_kept_apart_for_every_state_of_its_sources(packages: Path) -> None:
    calls = cache_folder(packages, "increase(n)", 1)
    assert packages / "cache" / "spectra-serve" in calls.parents
    assert cache_folder(packages, "increase(n)", 10) != calls
    assert cache_folder(packages, "increase(n) + 1", 1) != calls
    alone = cache_folder(packages, "n", 1)
    assert cache_folder(packages, "n", 10) == alone, "this function does not call the package that changed"
    assert cache_folder(packages, "increase(n)", 1) == calls
