"""Where the model of ``draft-model`` is."""

from __future__ import annotations

from pathlib import Path

from app.demo.paths import DEMO, DEMO_DRAFTER


def drafter_path(model: str) -> str:
    """What the loader takes: the demo drafter's directory, an absolute directory, or a hub id as it is."""
    path = DEMO_DRAFTER if model == DEMO else Path(model).expanduser()
    return str(path.resolve()) if path.is_dir() else model
