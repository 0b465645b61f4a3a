"""Typed access to a GGUF file's metadata."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engine.errors import UnsupportedModelError
from engine.model.gguf.header import GgufHeader

REQUIRED = object()
_LARGEST_SIZE = 1 << 31  # no size of a model is larger


class GgufMetadata:
    """The metadata of one file; a key that begins with a dot gets the architecture as its prefix.

    Methods that take a ``default`` return it if the key is missing, and fail without one.

    Raises:
        UnsupportedModelError: the file does not state its architecture; in all methods, a key is missing or wrong.
    """

    def __init__(self, header: GgufHeader) -> None:
        self._path = header.path
        self._values = header.metadata
        self.architecture = ""
        self.architecture = self.text("general.architecture")

    def __contains__(self, key: str) -> bool:
        return self.full_key(key) in self._values

    def full_key(self, key: str) -> str:
        return f"{self.architecture}{key}" if key.startswith(".") else key

    def integer(self, key: str, default: Any = REQUIRED) -> Any:
        return self._typed(key, int, default)

    def size(self, key: str, default: int | None = None) -> int:
        """Return an integer of at least 1."""
        value: int = self.integer(key, REQUIRED if default is None else default)
        if not 1 <= value < _LARGEST_SIZE:
            raise self.refusal(f"{self.full_key(key)} is {value}; it must be at least 1 and below {_LARGEST_SIZE}")
        return value

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a finite float."""
        found = self._typed(key, (int, float), default)
        if found is not None and not math.isfinite(found):
            raise self.refusal(f"{self.full_key(key)} is {found}; it must be finite")
        return found if found is None else float(found)

    def flag(self, key: str, default: Any = REQUIRED) -> Any:
        return self._typed(key, bool, default)

    def text(self, key: str, default: Any = REQUIRED) -> Any:
        return self._typed(key, str, default)

    def strings(self, key: str) -> list[str]:
        found: list[str] = self._typed(key, list, REQUIRED)
        return found

    def numbers(self, key: str, n: int) -> list[Any]:
        """Return a list of ``n`` numbers or booleans."""
        found = self._typed(key, np.ndarray, REQUIRED)
        if len(found) != n:
            raise self.refusal(f"{self.full_key(key)} has {len(found)} entries; it must have {n}")
        values: list[Any] = found.tolist()
        return values

    def is_list(self, key: str) -> bool:
        return isinstance(self._values.get(self.full_key(key)), (list, np.ndarray))

    def refusal(self, why: str) -> UnsupportedModelError:
        """Return the error to raise for a file that cannot be loaded."""
        return UnsupportedModelError(f"{self._path} cannot be loaded as a GGUF file: {why}")

    def _typed(self, key: str, kinds: Any, default: Any) -> Any:
        name = self.full_key(key)
        found = self._values.get(name, default)
        if found is REQUIRED:
            raise self.refusal(f"its metadata lacks {name}")
        if found is not default and (not isinstance(found, kinds) or (isinstance(found, bool) and kinds is not bool)):
            raise self.refusal(f"{name} is {str(found)[:80]!r}, which is not of the right type")
        return found
