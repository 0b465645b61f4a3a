"""One leading router per pipeline: a router that has been replaced cannot take the pipeline back from its successor.

A stage serves the router that connected last. Without epochs, a router that hung, was replaced and comes back to life
would take the pipeline from its successor, which would take it back, and so on. The owner of the pipeline (the target)
gives every router an epoch when it first asks. No clock plays a role; no sockets and no Ray are used here.
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
    """Another router serves on the pipeline, and would lose it to a second one that connects.

    Args:
        costs: step times of its target, as that router has them; None: not measured.
    """

    def __init__(self, costs: StepCosts | None) -> None:
        super().__init__("another router serves on this pipeline")
        self.costs = costs


@dataclass(frozen=True, slots=True)
class RouterStatus:
    """What a router says of itself when it asks for a pipeline."""

    incarnation: str = ""  # "": unknown, the router is admitted and supersedes no other
    is_ready: bool = False  # to serve; before, it may still fail, and must not supersede the router that serves
    has_led: bool = False  # was admitted as ready before, maybe by another owner
    costs: StepCosts | None = None  # step times of the target, for the router that comes next


NO_ROUTER = RouterStatus()


class LeaderEpochs:
    """Epochs of the routers of one pipeline, in the order of their first calls; kept by the pipeline's owner.

    An owner that was replaced starts without epochs and numbers the routers anew as they ask. One that led before is
    older than all that did not: in an upgrade the old router waits for the new pipeline as the new router does, and
    may ask last. If the older of two that led asks last, the newer one exits as superseded, Serve starts its
    successor, and that gets the latest epoch of all.
    """

    def __init__(self) -> None:
        self._epochs: dict[str, tuple[bool, int]] = {}  # by incarnation
        self._leading = (False, 0)  # the latest epoch of a router that was ready
        self.leader = NO_ROUTER  # of that router

    def admit(self, asking: RouterStatus) -> None:
        """Let a router use the pipeline.

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

    If it should have led after all, Serve starts another, which gets the latest epoch.
    """
    logger.warning("exiting: %s", error)
    os._exit(1)
