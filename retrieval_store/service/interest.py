"""The namespaces that drafts of a process ask for: which of them are worth a question to the service.

Knows names, when they were asked for and which came to nothing; not what is held of them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from retrieval_store.service.manifest_feed import is_namespace
from retrieval_store.service.negative_cache import Misses

MOST = 64  # namespaces held, besides the shared one
IDLE_S = 600.0  # a namespace without requests for so long is let go


class Wanted:
    """``want`` may be called from any thread, the rest belongs to one."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}  # namespace -> when a draft asked for it last, monotonic seconds
        self._misses = Misses()

    def want(self, name: str) -> None:
        """A draft asks for a namespace; takes no lock."""
        self._at[name] = time.monotonic()

    def names(self, held: Collection[str]) -> list[str]:
        """Those that were asked for lately, at most ``MOST``; the others are forgotten.

        ``held``, of which there is text, come first, so that names which somebody makes up drive none of them out;
        then those that nobody has looked for, then those that came to nothing; of each kind the latest.
        """
        now = time.monotonic()
        asked = {name: at for name, at in self._at.copy().items() if is_namespace(name) and now - at < IDLE_S}
        ranks = {name: 0 if name in held else 2 if name in self._misses else 1 for name in asked}
        kept = sorted(asked, key=lambda name: (ranks[name], -asked[name]))[:MOST]
        for name in self._at.copy().keys() - set(kept):
            self._at.pop(name, None)
        return kept

    def learn(self, asked: Sequence[str], empty: Collection[str]) -> None:
        """The service was asked for some and found ``empty`` of them to be so."""
        for name in asked:
            if name in empty:
                self._misses.add(name)
            else:
                self._misses.discard(name)
