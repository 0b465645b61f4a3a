"""State that requests of one namespace pass on to later ones, and never to requests of another namespace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
MOST = 64  # namespaces kept; one that was unused while so many others were used begins anew


class TenantState(OrderedDict[str, T]):
    """Namespace -> what was learnt there; only the most recently used namespaces, so that memory is bounded."""

    def of(self, namespace: str, make: Callable[[], T]) -> T:
        """The state of the namespace; made anew if there is none."""
        if namespace not in self:
            self.keep(namespace, make())
        self.move_to_end(namespace)
        return self[namespace]

    def keep(self, namespace: str, value: T) -> None:
        """Replace the state of the namespace; beyond ``MOST``, drop the namespace unused for longest."""
        self[namespace] = value
        self.move_to_end(namespace)
        while len(self) > MOST:
            self.popitem(last=False)
