"""What requests of one namespace leave to the next ones; never to those of another."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
MOST = 64  # namespaces remembered; a tenant that nobody has served for so many others begins anew


class TenantState(OrderedDict[str, T]):
    """Namespace -> what was learnt there, the most recently used ones only, so that memory is bounded."""

    def of(self, namespace: str, make: Callable[[], T]) -> T:
        """What the namespace left; made anew if it left nothing."""
        if namespace not in self:
            self.keep(namespace, make())
        self.move_to_end(namespace)
        return self[namespace]

    def keep(self, namespace: str, value: T) -> None:
        """Replace what the namespace left; the one that was not used for longest gives way."""
        self[namespace] = value
        self.move_to_end(namespace)
        while len(self) > MOST:
            self.popitem(last=False)
