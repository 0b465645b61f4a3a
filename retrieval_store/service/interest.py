"""Which namespaces a reader asks the service for: those that drafts use, except those without text lately."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from retrieval_store.service.manifest_feed import is_namespace

MOST = 64  # namespaces held in addition to the shared one
IDLE_S = 600.0  # a namespace is dropped after this time without requests
EMPTY_S = 60.0  # an empty namespace is asked for again after this: text may have been published
MOST_EMPTY = 4096  # names remembered as empty; the oldest are forgotten first


class NegativeCache:
    """Names of namespaces that had no text lately, so that other names come first. Not thread-safe."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # monotonic seconds; the latest last

    def __contains__(self, name: str) -> bool:
        return time.monotonic() < self._until.get(name, 0.0)

    def add(self, name: str) -> None:
        self._until.pop(name, None)
        self._until[name] = time.monotonic() + EMPTY_S
        if len(self._until) > MOST_EMPTY:
            del self._until[next(iter(self._until))]

    def discard(self, name: str) -> None:
        self._until.pop(name, None)


class Interest:
    """The namespaces that the drafts of a process use. ``note`` is thread-safe, the rest belongs to one thread."""

    def __init__(self) -> None:
        self._used_at: dict[str, float] = {}  # monotonic seconds
        self._empty = NegativeCache()

    def note(self, name: str) -> None:
        """Record that a draft uses a namespace; takes no lock."""
        self._used_at[name] = time.monotonic()

    def names(self, held: Collection[str]) -> list[str]:
        """Return at most ``MOST`` namespaces that drafts used lately, and forget the others.

        Those in ``held``, which have text, come first, so that invented names in requests displace none of them; then
        names never looked for; then names without text. Of each kind, the latest come first.
        """
        now = time.monotonic()
        used = {name: at for name, at in self._used_at.copy().items() if is_namespace(name) and now - at < IDLE_S}
        ranks = {name: 0 if name in held else 2 if name in self._empty else 1 for name in used}
        kept = sorted(used, key=lambda name: (ranks[name], -used[name]))[:MOST]
        for name in self._used_at.copy().keys() - set(kept):
            self._used_at.pop(name, None)
        return kept

    def learn(self, asked: Sequence[str], empty: Collection[str]) -> None:
        """Record which of the namespaces that the service was asked for are ``empty``."""
        for name in asked:
            if name in empty:
                self._empty.add(name)
            else:
                self._empty.discard(name)
