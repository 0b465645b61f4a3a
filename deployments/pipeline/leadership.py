"""One leading router per pipeline: a router that has been replaced cannot take the pipeline back from its successor.

A stage serves the router that connected last. Without epochs, a router that hung, was replaced and resumes would take
the pipeline from its successor, which would take it back, and so on. The owner of the pipeline (the target) gives every
router an epoch with its first request. This file uses no clock, no sockets and no Ray.
"""

from __future__ import annotations

import logging
import os
import secrets
from dataclasses import dataclass

from engine.errors import SpectraError, TargetLostError
from engine.step_cost import StepCosts

logger = logging.getLogger(__name__)

INCARNATION = secrets.token_hex(16)  # of this process, if it is a router; unique over all routers and restarts


class SupersededError(TargetLostError):
    """A later router leads the pipeline."""


class PipelineInUseError(SpectraError):
    """Another router uses the pipeline, and would lose it to a second one that connects.

    Args:
        costs: step times of the target, as that router has them; None: not measured.
    """

    def __init__(self, costs: StepCosts | None) -> None:
        super().__init__("another router serves on this pipeline")
        self.costs = costs


@dataclass(frozen=True, slots=True)
class RouterStatus:
    """What a router reports of itself when it requests a pipeline."""

    incarnation: str = ""  # "": unknown, the router is admitted and supersedes no other
    is_ready: bool = False  # to serve; before that it may still fail, and must not supersede the serving router
    has_led: bool = False  # was admitted as ready before, perhaps by another owner
    costs: StepCosts | None = None  # step times of the target, for the next router


NO_ROUTER = RouterStatus()


class LeaderEpochs:
    """Epochs of the routers of one pipeline, in the order of their first calls; kept by the pipeline's owner.

    A new owner starts without epochs and numbers the routers again as they call. A router that has led counts as older
    than all that have not: in an upgrade both routers wait for the new pipeline, and the old one may call last. If the
    older of two that have led calls last, the newer one exits as superseded, and the router that Serve starts in its
    place gets the latest epoch.
    """

    def __init__(self) -> None:
        self._epochs: dict[str, tuple[bool, int]] = {}  # by incarnation
        self._leading = (False, 0)  # the latest epoch of a router that was ready
        self.leader = NO_ROUTER  # of that router

    def admit(self, asking: RouterStatus) -> None:
        """Admit a router to the pipeline.

        Raises:
            SupersededError: a router with a later epoch has been ready.
        """
        if not asking.incarnation:
            return
        epoch = self._epochs.setdefault(asking.incarnation, (not asking.has_led, len(self._epochs) + 1))
        if epoch < self._leading:
            raise SupersededError("a later router leads this pipeline; this router has been replaced")
        if asking.is_ready:
            self._leading, self.leader = epoch, asking


def exit_superseded(error: SupersededError) -> None:
    """End this process, a router that has been replaced: the next router resumes its requests.

    If this router should have led, Serve starts another one, which gets the latest epoch.
    """
    logger.warning("exiting: %s", error)
    os._exit(1)
