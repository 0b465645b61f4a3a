"""Which namespaces are worth a question to the service: those drafts ask for, but for those without text lately."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from retrieval_store.service.manifest_feed import is_namespace

MOST = 64  # namespaces held, besides the shared one
IDLE_S = 600.0  # a namespace without requests for so long is let go
EMPTY_S = 60.0  # text may be published later, so an empty namespace is asked for again after this
MOST_EMPTY = 4096  # names remembered as empty; the oldest are forgotten first


class NegativeCache:
    """Names of namespaces that had no text when a caller looked: other names come first for a while.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # monotonic seconds; the latest last

    def __contains__(self, name: str) -> bool:
        """Whether the namespace had no text lately."""
        return time.monotonic() < self._until.get(name, 0.0)

    def __len__(self) -> int:
        """Names that take up memory."""
        return len(self._until)

    def add(self, name: str) -> None:
        """The namespace has no text now."""
        self._until.pop(name, None)
        self._until[name] = time.monotonic() + EMPTY_S
        if len(self._until) > MOST_EMPTY:
            del self._until[next(iter(self._until))]

    def discard(self, name: str) -> None:
        """The namespace has text, or may have some."""
        self._until.pop(name, None)


class Interest:
    """The namespaces that the drafts of a process ask for. ``note`` is thread-safe, the rest belongs to one thread."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}  # namespace -> when a draft asked for it last, monotonic seconds
        self._empty = NegativeCache()

    def note(self, name: str) -> None:
        """A draft asks for a namespace; takes no lock."""
        self._at[name] = time.monotonic()

    def names(self, held: Collection[str]) -> list[str]:
        """The namespaces that drafts asked for lately, at most ``MOST``; the others are forgotten.

        ``held``, of which there is text, come first, so that made-up names in requests drive none of them out; then
        names that were never looked for, then names without text; of each kind the latest.
        """
        now = time.monotonic()
        asked = {name: at for name, at in self._at.copy().items() if is_namespace(name) and now - at < IDLE_S}
        ranks = {name: 0 if name in held else 2 if name in self._empty else 1 for name in asked}
        kept = sorted(asked, key=lambda name: (ranks[name], -asked[name]))[:MOST]
        for name in self._at.copy().keys() - set(kept):
            self._at.pop(name, None)
        return kept

    def learn(self, asked: Sequence[str], empty: Collection[str]) -> None:
        """The service was asked for some namespaces and found those in ``empty`` without text."""
        for name in asked:
            if name in empty:
                self._empty.add(name)
            else:
                self._empty.discard(name)
