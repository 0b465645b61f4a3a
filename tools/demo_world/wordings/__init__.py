"""Ways to ask for a thing, one file a module of tasks: as data, because variety is all that matters of them.

Those behind the first ten or so of a list were written without a look at its unseen ones.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from tools.demo_world.draw import Wordings

HERE = Path(__file__).parent


def lists(name: str) -> dict[str, Any]:
    """What NAME.toml holds."""
    return tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))


def wordings(task: str) -> dict[str, Wordings]:
    """The wordings of TASK.toml by name."""
    return {name: Wordings(found["seen"], found["unseen"]) for name, found in lists(task).items()}
