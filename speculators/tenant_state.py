"""State that requests of one scope pass on to later ones, and never to requests of another scope."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
MOST = 64  # scopes kept; one that was unused while so many others were used begins anew


class TenantState(OrderedDict[str, T]):
    """Scope -> what was learnt there; only the ``most`` most recently used scopes, so that memory is bounded."""

    def __init__(self, most: int = MOST) -> None:
        super().__init__()
        self._most = most

    def of(self, scope: str, make: Callable[[], T]) -> T:
        """The state of the scope; made anew if there is none."""
        if scope not in self:
            self.keep(scope, make())
        self.move_to_end(scope)
        return self[scope]

    def keep(self, scope: str, value: T) -> None:
        """Replace the state of the scope; beyond ``most``, drop the scope unused for longest."""
        self[scope] = value
        self.move_to_end(scope)
        while len(self) > self._most:
            self.popitem(last=False)
