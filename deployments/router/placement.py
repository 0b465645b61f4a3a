"""Placement: which lane takes a newcomer, the least loaded or the one that has read the same prefix before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator

from deployments.options import RouterOptions
from deployments.router.lane import Lane
from engine.request import Request

PREFIX_TOKENS = (256, 64, 16)  # lengths of the prefixes that are remembered, longest first
REMEMBERED = 20_000  # prefixes; the least recently used are forgotten


class Placement:
    """Chooses among lanes.

    Args:
        lanes: all of them.
        options: of the router: ``affinity``, ``affinity_slack``.
    """

    def __init__(self, lanes: list[Lane], options: RouterOptions) -> None:
        self._lanes = lanes
        self._by_prefix = options.affinity == "prefix" and len(lanes) > 1
        self._slack = options.affinity_slack
        self._lane_of: OrderedDict[Hashable, Lane] = OrderedDict()  # by prefix key

    def choose(self, request: Request) -> Lane:
        """The lane for a newcomer; one that takes newcomers, if there is any."""
        best = self._least_loaded()
        if not self._by_prefix:
            return best
        keys = [*_prefix_keys(request)]
        known = next((self._lane_of[key] for key in keys if key in self._lane_of), best)
        if known.takes and known.load <= best.load + self._slack:
            best = known
        for key in keys:
            self._lane_of[key] = best
            self._lane_of.move_to_end(key)
        while len(self._lane_of) > REMEMBERED:
            self._lane_of.popitem(last=False)
        return best

    def _least_loaded(self) -> Lane:
        """The lane with the least work among those that take newcomers; without any, among all that are wanted."""
        if len(self._lanes) == 1:
            return self._lanes[0]
        taking = [lane for lane in self._lanes if lane.takes] or [lane for lane in self._lanes if lane.is_wanted]
        return min(taking, key=lambda lane: lane.load)


def _prefix_keys(request: Request) -> Iterator[Hashable]:
    """Keys of a request's prefixes, the longest first; requests of different scopes share none."""
    for n in PREFIX_TOKENS:
        if len(request.prompt) >= n:
            yield request.scope, n, hash(tuple(request.prompt[:n]))
