"""Decides how many pipelines there should be. Pure: no clock, no lanes, no Ray."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deployments.options import ScalingOptions
from engine.errors import ConfigError

FULL = 0.8  # share of the remaining pipelines that running requests may fill when one is removed
MIN_KEY, MAX_KEY = "min_replicas", "max_replicas"  # of the router's ``user_config``


def bounds_of(user_config: Mapping[str, Any], options: ScalingOptions) -> tuple[int, int]:
    """The least and the most pipelines by the router's ``user_config``; a missing key has the value in ``args``.

    Raises:
        ConfigError: a key is unknown, or a number is outside the bounds in ``args``.
    """
    for key in user_config:
        if key not in (MIN_KEY, MAX_KEY):
            raise ConfigError(f"Router.user_config.{key} is unknown; it has {MIN_KEY} and {MAX_KEY}")
    least, most = user_config.get(MIN_KEY, options.least), user_config.get(MAX_KEY, options.most)
    for key, value in ((MIN_KEY, least), (MAX_KEY, most)):
        if type(value) is not int or not options.least <= value <= options.most:
            allowed = f"an integer from {options.least} to {options.most}, the bounds in args"
            raise ConfigError(f"Router.user_config.{key} is {value!r}; it must be {allowed}")
    if least > most:
        raise ConfigError(f"Router.user_config.{MIN_KEY} is {least}; it must be at most {MAX_KEY}, which is {most}")
    return least, most


@dataclass(frozen=True, slots=True)
class Demand:
    """The load of all pipelines at one moment."""

    pipelines: float  # that would run all requests concurrently; 0: there are no requests
    waited: float = 0.0  # seconds that the oldest request without KV blocks has waited
    up: int = 1  # enabled pipelines that are connected


@dataclass(frozen=True, slots=True)
class _Run:
    """A condition that has held without a break."""

    since: float
    need: int  # pipelines: the least, or most, that were needed meanwhile


class ScalingPolicy:
    """Adds pipelines when requests lack room, and removes them when running requests fit into fewer.

    * It adds pipelines once the demand has exceeded the desired number for ``up_delay`` seconds without a break: as
      many as were needed all the time. The desired number includes pipelines that are still starting.
    * It adds one pipeline at once when a request has waited for ``up_delay`` seconds although all desired pipelines
      have been up for as long: the estimate of the demand was wrong.
    * It removes pipelines once the demand has filled at most ``FULL`` of fewer for ``down_delay`` seconds without a
      break: as many as were superfluous all the time.

    Args:
        options: bounds and delays.
        desired: pipelines to begin with, within the bounds.
    """

    def __init__(self, options: ScalingOptions, desired: int = 0) -> None:
        self._options = options
        self._least, self._most = options.least, options.most
        self.desired = self._clamp(desired)
        self._short: _Run | None = None
        self._spare: _Run | None = None
        self._complete_since: float | None = None  # since when all desired pipelines are up

    def set_bounds(self, least: int, most: int) -> None:
        """Change the bounds and apply them at once."""
        self._least, self._most = least, most
        self._set_desired(self.desired)

    def decide(self, demand: Demand, now: float) -> int:
        """The desired number of pipelines from ``now`` (seconds of a steady clock) on."""
        if demand.up < self.desired:
            self._complete_since = None
        elif self._complete_since is None:
            self._complete_since = now
        waits = demand.waited >= self._options.up_delay
        needed, roomy = math.ceil(demand.pipelines), math.ceil(demand.pipelines / FULL)
        short = self._short = _extend(self._short, needed > self.desired, needed, now, min)
        spare = self._spare = _extend(self._spare, roomy < self.desired and not waits, roomy, now, max)
        if waits and self._complete_since is not None and now - self._complete_since >= self._options.up_delay:
            self._set_desired(max(needed, self.desired + 1))
        elif short is not None and now - short.since >= self._options.up_delay:
            self._set_desired(short.need)
        elif spare is not None and now - spare.since >= self._options.down_delay:
            self._set_desired(spare.need)
        return self.desired

    def _set_desired(self, desired: int) -> None:
        desired = self._clamp(desired)
        if desired != self.desired:
            self.desired = desired
            self._short = self._spare = self._complete_since = None

    def _clamp(self, desired: int) -> int:
        return max(self._least, min(self._most, desired))


def _extend(run: _Run | None, holds: bool, need: int, now: float, join: Callable[[int, int], int]) -> _Run | None:
    if not holds:
        return None
    return _Run(now, need) if run is None else _Run(run.since, join(run.need, need))
