"""State that the requests of one scope share, and requests of other scopes never see."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
MOST = 64  # scopes kept; one that was unused while so many others were used starts anew


class TenantState(OrderedDict[str, T]):
    """Scope -> its state; keeps the ``most`` most recently used scopes, so that memory is bounded."""

    def __init__(self, most: int = MOST) -> None:
        super().__init__()
        self._most = most

    def of(self, scope: str, make: Callable[[], T]) -> T:
        """Return the state of a scope, a new one if there is none."""
        if scope not in self:
            self.keep(scope, make())
        self.move_to_end(scope)
        return self[scope]

    def keep(self, scope: str, value: T) -> None:
        """Set the state of a scope, and drop the least recently used scope if there are too many."""
        self[scope] = value
        self.move_to_end(scope)
        while len(self) > self._most:
            self.popitem(last=False)
