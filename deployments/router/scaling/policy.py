"""How many pipelines are wanted, from what is asked of those that are there. Pure: no clock, no lanes, no Ray."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from deployments.options import ScalingOptions

FULL = 0.8  # share of the remaining pipelines that what runs may take up when one is given up


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of all pipelines at one moment."""

    pipelines: float  # that would run all requests side by side; 0: there is none
    waited: float = 0.0  # seconds that the request has waited which has waited longest for its first KV blocks
    up: int = 1  # pipelines that are wanted and connected


@dataclass(frozen=True, slots=True)
class _Run:
    """A condition that has held without a break."""

    since: float
    need: int  # pipelines: the least, or most, that was needed meanwhile


class ScalingPolicy:
    """Adds pipelines when requests lack room, and gives them up when what runs fits into fewer.

    * More are wanted once the demand has exceeded those that are wanted for ``up_delay`` seconds without a break: as
      many as it needed all the time. Pipelines that are wanted and not there yet count, so none is asked for twice.
    * One more is wanted at once when a request has waited for ``up_delay`` seconds although all that are wanted are
      there, and have been for as long: what the demand is reckoned by was wrong.
    * Fewer are wanted once the demand has filled ``FULL`` of fewer at most for ``down_delay`` seconds without a
      break: as few as that held for all the time.

    Args:
        options: bounds and delays.
        wanted: pipelines to begin with; the bounds hold for them.
    """

    def __init__(self, options: ScalingOptions, wanted: int = 0) -> None:
        self._options = options
        self._least, self._most = options.least, options.most
        self.wanted = self._bounded(wanted)
        self._short: _Run | None = None
        self._spare: _Run | None = None
        self._whole_since: float | None = None  # since when all that are wanted are up

    def bound(self, least: int, most: int) -> None:
        """Change the bounds; they hold at once."""
        self._least, self._most = least, most
        self._want(self.wanted)

    def decide(self, demand: Demand, now: float) -> int:
        """The number of pipelines that are wanted from ``now`` (seconds of any steady clock) on."""
        if demand.up < self.wanted:
            self._whole_since = None
        elif self._whole_since is None:
            self._whole_since = now
        waits = demand.waited >= self._options.up_delay
        needed, roomy = math.ceil(demand.pipelines), math.ceil(demand.pipelines / FULL)
        short = self._short = _extended(self._short, needed > self.wanted, needed, now, min)
        spare = self._spare = _extended(self._spare, roomy < self.wanted and not waits, roomy, now, max)
        if waits and self._whole_since is not None and now - self._whole_since >= self._options.up_delay:
            self._want(max(needed, self.wanted + 1))
        elif short is not None and now - short.since >= self._options.up_delay:
            self._want(short.need)
        elif spare is not None and now - spare.since >= self._options.down_delay:
            self._want(spare.need)
        return self.wanted

    def _want(self, wanted: int) -> None:
        wanted = self._bounded(wanted)
        if wanted != self.wanted:
            self.wanted = wanted
            self._short = self._spare = self._whole_since = None

    def _bounded(self, wanted: int) -> int:
        return max(self._least, min(self._most, wanted))


def _extended(run: _Run | None, holds: bool, need: int, now: float, join: Callable[[int, int], int]) -> _Run | None:
    if not holds:
        return None
    return _Run(now, need) if run is None else _Run(run.since, join(run.need, need))
