"""How many token ids a checkpoint's model knows."""

from __future__ import annotations

import json
from pathlib import Path


def vocab_size(path: Path) -> int:
    """Of the checkpoint in directory ``path``; transformers loads only where ``config.json`` leaves it to its defaults.

    Raises:
        UnsupportedModelError: there it has to, and the checkpoint cannot be run.
    """
    try:
        said = json.loads((path / "config.json").read_text(encoding="utf-8")).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        said = None
    if isinstance(said, int):
        return said
    from engine.model.loader import load_spec

    return load_spec(path).vocab_size
