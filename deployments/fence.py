"""One router at a time: who came later may use a pipeline, who came before may not have it back.

A stage serves whoever connected last. Without more, a router that hung, was replaced and comes back to life would take
the pipeline from its successor, which would take it back, and so on. Knows clocks, but no sockets and no Ray.
"""

from __future__ import annotations

import logging
import os
import time

from engine.errors import TargetLostError

logger = logging.getLogger("ray.serve")

ROUTER_EPOCH = time.time_ns()  # of this process, if it is a router: its successors have later ones


class SupersededError(TargetLostError):
    """A later router has asked for the pipeline."""


class Fence:
    """Remembers the latest router; of the owner of a pipeline."""

    def __init__(self) -> None:
        self._latest = 0

    def admit(self, epoch: int) -> None:
        """Let a router pass; ``epoch`` 0 is one that says nothing of its age.

        Raises:
            SupersededError: a later one has passed before.
        """
        if 0 < epoch < self._latest:
            raise SupersededError("a later router has this pipeline; this one has been replaced")
        self._latest = max(self._latest, epoch)


def leave(error: SupersededError) -> None:
    """End this process, a router that has been replaced: nothing it holds is wanted any more.

    If it was the wrong one after all, Serve starts another, which is the latest of all.
    """
    logger.warning("leaving: %s", error)
    os._exit(1)
