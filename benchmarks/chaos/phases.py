"""One blow and what was seen of it: when the victim was replaced, when health was true again, when all text flowed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import psutil

from benchmarks.chaos.blows import Blow, alive, strike, title
from benchmarks.chaos.cluster import Cluster
from benchmarks.chaos.streams import Streams, chunk_times
from benchmarks.chaos.watch import Look, Watch

FLOW_S = 90.0  # longest wait for all streams to go on
LOOK_S = 0.05
PAUSE_S = 0.5  # a pause longer than this is one that somebody may see


@dataclass
class Phase:
    """A blow; times in seconds after it."""

    blow: Blow
    struck: float  # monotonic seconds
    pid: int = 0
    replaced: float | None = None  # another process of the kind is there, and the victim has gone
    flowed: bool = False
    ended: float = 0.0  # monotonic seconds
    notes: list[str] = field(default_factory=list)


async def go_through(blow: Blow, streams: Streams, watch: Watch, cluster: Cluster, calm: float) -> Phase:
    """Wait for a moment in which all clients get text, strike, and wait until they do again, plus ``calm`` seconds."""
    await streams.all_flow(FLOW_S)
    stages, n_before = await cluster.stage_pids(), len(alive(watch.root, blow.victim))
    phase = Phase(blow, time.monotonic())
    phase.pid = strike(watch.root, blow, stages)
    replacing = asyncio.create_task(_replaced(phase, watch.root, n_before))
    await asyncio.sleep(0.3)  # what was on its way has arrived
    phase.flowed = await streams.all_flow(FLOW_S)
    phase.replaced = await replacing
    await asyncio.sleep(calm)
    if blow.wakes:
        psutil.Process(phase.pid).resume()
    elif phase.replaced is None:
        phase.notes.append("the victim was not replaced")
    if not phase.flowed:
        phase.notes.append(f"not every stream went on within {FLOW_S:.0f} s")
    phase.ended = time.monotonic()
    return phase


async def _replaced(phase: Phase, root: int, wanted: int) -> float | None:
    """Seconds until the victim has gone and as many of its kind as before are there; None: not, or not expected."""
    if phase.blow.wakes:
        return None
    while time.monotonic() < phase.struck + FLOW_S:
        others = [process for process in alive(root, phase.blow.victim) if process.pid != phase.pid]
        if len(others) >= wanted and not _exists(phase.pid):
            return time.monotonic() - phase.struck
        await asyncio.sleep(LOOK_S)
    return None


def _exists(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and bool(title(process))
    except psutil.Error:
        return False


def longest_pause(phase: Phase, streams: Streams) -> tuple[float, float]:
    """(longest time without text of any client that began after the phase before, seconds after the blow at which the
    last pause above ``PAUSE_S`` ended): the second is the time to recovery."""
    longest, recovered = 0.0, 0.0
    for times in chunk_times(streams.records).values():
        for before, after in pairwise(sorted(times)):
            if after < phase.struck or before > phase.ended:
                continue
            longest = max(longest, after - before)
            if after - before > PAUSE_S:
                recovered = max(recovered, after - phase.struck)
    return longest, recovered


def unready(phase: Phase, looks: Sequence[Look]) -> tuple[float | None, float | None]:
    """Seconds after the blow between which /health was not ok; (None, None): it always was."""
    down = [look.at for look in looks if phase.struck <= look.at <= phase.ended and look.health.get("status") != "ok"]
    return (down[0] - phase.struck, down[-1] - phase.struck) if down else (None, None)
