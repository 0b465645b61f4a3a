"""What is asked of the pipelines of a router at one moment."""

from __future__ import annotations

import time
from collections.abc import Sequence

from deployments.router.lane import Lane
from deployments.router.scaling.policy import Demand
from deployments.router.service_rate import n_slots
from engine.scheduling.sequence import SequenceState


def demand_of(lanes: Sequence[Lane]) -> Demand:
    """The demand of all live requests, those of lanes that are being given up included."""
    now = time.perf_counter()  # the clock of ``Sequence.stats``
    waited = [
        now - one.stats.began
        for lane in lanes
        for one in lane.sequences
        if one.state is SequenceState.WAITING and one.stats.entered is None
    ]
    return Demand(
        pipelines=sum(map(_pipelines, lanes)),
        waited=max(waited, default=0.0),
        up=sum(lane.takes for lane in lanes),
    )


def _pipelines(lane: Lane) -> float:
    """Pipelines that would run a lane's requests side by side: what those that run take up of this one's slots or KV
    blocks, whichever is scarcer, and those that wait at the length of today's requests."""
    scheduler = lane.scheduler
    slots, blocks = scheduler.n_running / scheduler.options.max_sequences, scheduler.blocks
    taken = max(slots, 1 - blocks.n_free / blocks.n_blocks) if scheduler.n_running else 0.0
    return taken + (lane.n_waiting / n_slots(scheduler, lane.service_rate) if lane.n_waiting else 0.0)
