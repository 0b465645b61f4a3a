"""Who is refused when there is more work than can be done in time, and when they should come back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from deployments.options import RouterOptions
from deployments.router.lane import Lane
from deployments.router.wait_estimate import Waits
from engine.errors import OverloadedError
from engine.scheduling.sequence import Sequence as Request

SOONEST_S = 1.0  # before a client that was refused may try again
FRESH_S = 0.05  # that an estimate holds while nobody is let in: refusing many must not keep the router from its steps
OVERFLOW = 2  # no more than so many times ``max_waiting`` wait, whoever they belong to


class Gate:
    """Lets newcomers in.

    Places and queue are counted together: what is alive in all lanes is at most what may run and what may wait. A
    queue that is full is still open to a tenant who has less than an equal share of it waiting: nobody's flood shuts
    out others. Then the wait that is to be expected decides, by what is ahead of this very newcomer.

    Args:
        lanes: all of them.
        options: of the router: ``max_wait``, and the scheduler's ``max_sequences`` and ``max_waiting``.
        clock: seconds.
    """

    def __init__(
        self, lanes: Sequence[Lane], options: RouterOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lanes = lanes
        self._options = options
        self._clock = clock
        self._waits: dict[Lane, tuple[int, float, Waits]] = {}  # for which newcomer, and when, each was worked out

    def check(self, newcomer: Request, lane: Lane) -> None:
        """Raises OverloadedError, with ``retry_after`` seconds, when ``newcomer`` should not queue in ``lane`` now.

        ``newcomer`` has the number of sequences that were let in before it.
        """
        limits = self._options.scheduler
        live = sum(len(other.sequences) for other in self._lanes)
        n_waiting = live - limits.max_sequences * max(1, sum(other.is_up for other in self._lanes))
        if n_waiting < 0 and not lane.n_waiting:
            return  # there is a place, and nobody before it; where memory is short, a queue forms before places are
        wait = self._waits_in(lane, newcomer.seq).of(newcomer)
        if n_waiting >= limits.max_waiting and not self._is_owed(newcomer, n_waiting):
            retry = wait / 2 if wait else SOONEST_S
            raise OverloadedError(f"{n_waiting} requests are waiting already", max(SOONEST_S, retry))
        bound = self._options.max_wait
        if bound is not None and wait is not None and wait > bound:
            raise OverloadedError(
                f"the wait would be about {wait:.0f} s, more than {bound:g} s", max(SOONEST_S, wait - bound)
            )

    def _waits_in(self, lane: Lane, n_before: int) -> Waits:
        """Worked out anew when somebody was let in since, or after a while."""
        now = self._clock()
        known = self._waits.get(lane)
        if known is None or known[0] != n_before or now - known[1] > FRESH_S:
            known = self._waits[lane] = n_before, now, Waits(lane.scheduler, lane.pace)
        return known[2]

    def _is_owed(self, newcomer: Request, n_waiting: int) -> bool:
        """Whether its tenant has less than an equal share of a queue that is full."""
        if n_waiting >= OVERFLOW * self._options.scheduler.max_waiting:
            return False
        tenants: Counter[str] = Counter()
        for lane in self._lanes:
            tenants.update(self._waits_in(lane, newcomer.seq).waiting)
        share = self._options.scheduler.max_waiting / len({*tenants, newcomer.tenant})
        return tenants[newcomer.tenant] < share
