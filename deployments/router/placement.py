"""Chooses a lane for a new request: the least loaded one, or the one that has the request's prefix cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator

from deployments.options import RouterOptions
from deployments.router.lane import Lane
from engine.request import Request

PREFIX_TOKENS = (256, 64, 16)  # lengths of remembered prefixes, longest first
MAX_PREFIXES = 20_000  # remembered; the least recently used are evicted


class Placement:
    """Chooses lanes.

    Args:
        lanes: all of them.
        options: of the router, with ``affinity`` and ``affinity_slack``.
    """

    def __init__(self, lanes: list[Lane], options: RouterOptions) -> None:
        self._lanes = lanes
        self._by_prefix = options.affinity == "prefix" and len(lanes) > 1
        self._slack = options.affinity_slack
        self._lane_of: OrderedDict[Hashable, Lane] = OrderedDict()  # by prefix key

    def choose(self, request: Request) -> Lane:
        """The lane for a new request; one that accepts requests, if there is any."""
        best = self._least_loaded()
        if not self._by_prefix:
            return best
        keys = [*_prefix_keys(request)]
        known = next((self._lane_of[key] for key in keys if key in self._lane_of), best)
        if known.accepts_requests and known.load <= best.load + self._slack:
            best = known
        for key in keys:
            self._lane_of[key] = best
            self._lane_of.move_to_end(key)
        while len(self._lane_of) > MAX_PREFIXES:
            self._lane_of.popitem(last=False)
        return best

    def _least_loaded(self) -> Lane:
        """The lane with the least work among those that accept requests; without any, among the enabled ones."""
        if len(self._lanes) == 1:
            return self._lanes[0]
        accepting = [lane for lane in self._lanes if lane.accepts_requests]
        return min(accepting or [lane for lane in self._lanes if lane.is_enabled], key=lambda lane: lane.load)


def _prefix_keys(request: Request) -> Iterator[Hashable]:
    """Keys of a request's prefixes, longest first; requests of different scopes share none."""
    for n in PREFIX_TOKENS:
        if len(request.prompt) >= n:
            yield request.scope, n, hash(tuple(request.prompt[:n]))
