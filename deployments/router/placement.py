"""Which lane takes a newcomer: the least loaded, or the one that has read its beginning before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence

from deployments.options import RouterOptions
from deployments.router.lane import Lane
from deployments.submission.messages import SubmitRequest

PREFIX_TOKENS = (256, 64, 16)  # beginnings that are remembered, longest first
REMEMBERED = 20_000  # beginnings; the oldest are forgotten


class Placement:
    """Chooses among lanes.

    Args:
        lanes: all of them.
        options: of the router: ``affinity``, ``affinity_slack``.
    """

    def __init__(self, lanes: Sequence[Lane], options: RouterOptions) -> None:
        self._lanes = lanes
        self._by_prefix = options.affinity == "prefix" and len(lanes) > 1
        self._slack = options.affinity_slack
        self._homes: OrderedDict[Hashable, Lane] = OrderedDict()

    def choose(self, request: SubmitRequest) -> Lane:
        """The lane for a newcomer; one that is up, if there is any."""
        best = self.least_loaded()
        if not self._by_prefix:
            return best
        keys = [*_beginnings(request)]
        known = next((self._homes[key] for key in keys if key in self._homes), best)
        if known.is_up and known.load <= best.load + self._slack:
            best = known
        for key in keys:
            self._homes[key] = best
            self._homes.move_to_end(key)
        while len(self._homes) > REMEMBERED:
            self._homes.popitem(last=False)
        return best

    def least_loaded(self) -> Lane:
        """The one with the least work, of those that are up; of all of them while none is."""
        if len(self._lanes) == 1:
            return self._lanes[0]
        return min([lane for lane in self._lanes if lane.is_up] or self._lanes, key=lambda lane: lane.load)


def _beginnings(request: SubmitRequest) -> Iterator[Hashable]:
    """Keys of a request's beginnings, the longest first; namespaces share none."""
    for n in PREFIX_TOKENS:
        if len(request.prompt) >= n:
            yield request.namespace, n, hash(tuple(request.prompt[:n]))
