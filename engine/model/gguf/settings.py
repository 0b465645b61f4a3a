"""Typed access to a GGUF file's metadata."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engine.errors import UnsupportedModelError
from engine.model.gguf.header import GgufHeader

REQUIRED = object()


class Metadata:
    """The metadata of one file; keys that begin with a dot are of its architecture.

    Args:
        header: of the file.

    Raises:
        UnsupportedModelError: the file does not state its architecture.
    """

    def __init__(self, header: GgufHeader) -> None:
        self.path = header.path
        self._values = header.metadata
        self.architecture = ""
        self.architecture = self.text("general.architecture")

    def __contains__(self, key: str) -> bool:
        """Whether the file has the key."""
        return self._full(key) in self._values

    def integer(self, key: str, default: Any = REQUIRED) -> Any:
        """An integer, or ``default``."""
        return self._typed(key, int, default)

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """A finite float, or ``default``."""
        found = self._typed(key, (int, float), default)
        if found is not None and not math.isfinite(found):
            raise self.refusal(f"{self._full(key)} is {found}; it must be finite")
        return found if found is None else float(found)

    def flag(self, key: str, default: Any = REQUIRED) -> Any:
        """A boolean, or ``default``."""
        return self._typed(key, bool, default)

    def text(self, key: str, default: Any = REQUIRED) -> Any:
        """A string, or ``default``."""
        return self._typed(key, str, default)

    def strings(self, key: str) -> list[str]:
        """A list of strings."""
        found: list[str] = self._typed(key, list, REQUIRED)
        return found

    def numbers(self, key: str, n: int) -> list[Any]:
        """A list of ``n`` numbers or booleans."""
        found = self._typed(key, np.ndarray, REQUIRED)
        if len(found) != n:
            raise self.refusal(f"{self._full(key)} has {len(found)} entries; it must have {n}")
        values: list[Any] = found.tolist()
        return values

    def is_list(self, key: str) -> bool:
        """Whether the file has a list for the key."""
        return isinstance(self._values.get(self._full(key)), (list, np.ndarray))

    def refusal(self, why: str) -> UnsupportedModelError:
        """What to raise for a file that cannot be loaded."""
        return UnsupportedModelError(f"{self.path} cannot be loaded as a GGUF file: {why}")

    def _typed(self, key: str, kinds: Any, default: Any) -> Any:
        name = self._full(key)
        found = self._values.get(name, default)
        if found is REQUIRED:
            raise self.refusal(f"its metadata lacks {name}")
        if found is not default and (not isinstance(found, kinds) or (isinstance(found, bool) and kinds is not bool)):
            raise self.refusal(f"{name} is {str(found)[:80]!r}, which is not of the right type")
        return found

    def _full(self, key: str) -> str:
        return f"{self.architecture}{key}" if key.startswith(".") else key
