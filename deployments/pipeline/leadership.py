"""One router at a time: who came later may use a pipeline, who came before may not have it back.

A stage serves whoever connected last. Without more, a router that hung, was replaced and comes back to life would take
the pipeline from its successor, which would take it back, and so on. The owner of the pipeline numbers routers as they
come; no clock plays a role, and it knows no sockets and no Ray.
"""

from __future__ import annotations

import logging
import os
import secrets

from engine.errors import TargetLostError

logger = logging.getLogger("ray.serve")

INCARNATION = secrets.token_hex(16)  # of this process, if it is a router: no other has or had the same


class SupersededError(TargetLostError):
    """A later router has the pipeline."""


class Fence:
    """Remembers in which order routers came; of the owner of a pipeline.

    An owner that was replaced has forgotten all of them, and numbers them anew as they ask. Should the wrong one of
    two come last then, the other leaves, Serve starts its successor, and that is the last of all.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # by incarnation, in the order of first calls
        self._latest = 0  # of those that were ready

    def admit(self, router: str, ready: bool) -> None:
        """Let a router pass.

        Args:
            router: its incarnation; "": it says nothing of itself, and shuts nobody out.
            ready: whether it serves: before, it may still fail, and then must have shut nobody out.

        Raises:
            SupersededError: one that came later has been ready.
        """
        if not router:
            return
        number = self._numbers.setdefault(router, len(self._numbers) + 1)
        if number < self._latest:
            raise SupersededError("a later router has this pipeline; this one has been replaced")
        if ready:
            self._latest = number


def leave(error: SupersededError) -> None:
    """End this process, a router that has been replaced: nothing it holds is wanted any more.

    If it was the wrong one after all, Serve starts another, which is the latest of all.
    """
    logger.warning("leaving: %s", error)
    os._exit(1)
