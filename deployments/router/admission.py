"""Admission: fills in the server's defaults, and refuses what cannot be served, ever or in time.

A request that is resumed after its router was lost was admitted there; it may even be complete but for its end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection

import msgspec

from deployments.options import RouterOptions
from deployments.router.lane import Lane
from deployments.router.service_rate import WaitEstimate
from engine.errors import OverloadedError
from engine.events import LENGTH, STOP, StepEvent
from engine.request import Request
from engine.scheduling.drafting import AUTOREGRESSIVE
from engine.scheduling.sequence import Sequence
from engine.scheduling.stats import StatsCounter
from speculators.methods import check_allowed, normalised, with_prediction

SOONEST_S = 1.0  # least ``retry_after``
FRESH_S = 0.05  # an estimate holds so long unless a request is admitted: a flood of refusals must not delay steps
OVERFLOW = 2  # at most so many times ``max_waiting`` requests wait, over all tenants


def as_served(request: Request, options: RouterOptions) -> Request:
    """The request with the server's defaults filled in; the shared namespace becomes none.

    Raises:
        UnknownMethodError: the server does not allow the method, or it joins too many.
    """
    if request.namespace == options.shared_namespace:
        request = msgspec.structs.replace(request, namespace="")
    if request.method:
        method = _allowed(request.method, options)
    else:
        method = with_prediction(options.method) if request.prediction else options.method
    return msgspec.structs.replace(request, method=method)


def offered_methods(options: RouterOptions, available: Collection[str]) -> tuple[str, ...]:
    """What a request may name as its method: names of ``available``, and joined ones that the server's list has.

    The server's own method and plain decoding count as listed; one with a part that is not ``available`` is left out.
    """
    listed = options.methods or available
    allowed = dict.fromkeys((options.method, AUTOREGRESSIVE, *listed))
    return tuple(method for method in allowed if all(name in available for name in method.split("+")))


def _allowed(method: str, options: RouterOptions) -> str:
    """The one spelling of a method that requests may name; the default and plain decoding are always allowed."""
    method = normalised(method)
    if options.methods and method not in (options.method, AUTOREGRESSIVE):
        check_allowed(method, options.methods)
    return method


def finish_of(request: Request) -> StepEvent | None:
    """The last event, without tokens, of a request whose emitted tokens are its whole output; None otherwise.

    A lost router can have emitted all tokens of a request, but not its end.
    """
    if not request.emitted:
        return None
    last, params = request.emitted[-1], request.params
    stopped = last in params.stop_ids
    if not stopped and len(request.emitted) < params.max_tokens:
        return None
    stats = StatsCounter(len(request.prompt)).freeze()
    return StepEvent(
        token_ids=[],
        finish_reason=STOP if stopped else LENGTH,
        stop_reason=last if stopped else None,
        stats=stats,
    )


class Admission:
    """Admits newcomers or refuses them.

    Counts over all lanes: at most as many requests are alive as may run (``max_sequences`` for every lane that takes
    newcomers) and may wait (``max_waiting``). A full queue still admits a tenant that has less than an equal share of
    it waiting, so that the flood of one tenant does not shut out the others. A newcomer for whom there is room is
    refused when its estimated wait exceeds ``max_wait``.

    Args:
        lanes: all of them.
        options: of the router: ``max_wait``, and the scheduler's ``max_sequences`` and ``max_waiting``.
        clock: seconds.
    """

    def __init__(self, lanes: list[Lane], options: RouterOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._lanes = lanes
        self._options = options
        self._clock = clock
        # Lane -> number of the newcomer the estimate was made for, when it was made, and the estimate.
        self._estimates: dict[Lane, tuple[int, float, WaitEstimate]] = {}

    def check(self, newcomer: Sequence, lane: Lane) -> None:
        """Raises OverloadedError, with ``retry_after`` seconds, when ``newcomer`` should not queue in ``lane`` now.

        ``newcomer.seq`` is the number of sequences that were admitted before it.
        """
        limits = self._options.scheduler
        live = sum(len(other.sequences) for other in self._lanes)
        n_waiting = live - limits.max_sequences * max(1, sum(other.takes for other in self._lanes))
        if n_waiting < 0 and not lane.n_waiting:  # where memory is short, a queue forms before all slots are taken
            return
        wait = self._estimate(lane, newcomer.seq).seconds(newcomer)
        if n_waiting >= limits.max_waiting and not self._is_owed_a_place(newcomer, n_waiting):
            retry = wait / 2 if wait else SOONEST_S
            raise OverloadedError(f"{n_waiting} requests are waiting already", max(SOONEST_S, retry))
        bound = self._options.max_wait
        if bound is not None and wait is not None and wait > bound:
            raise OverloadedError(
                f"the wait would be about {wait:.0f} s, more than {bound:g} s", max(SOONEST_S, wait - bound)
            )

    def _estimate(self, lane: Lane, n_before: int) -> WaitEstimate:
        """The lane's estimate, made anew after an admission or when it is older than ``FRESH_S``."""
        now = self._clock()
        known = self._estimates.get(lane)
        if known is None or known[0] != n_before or now - known[1] > FRESH_S:
            known = self._estimates[lane] = n_before, now, WaitEstimate(lane.scheduler, lane.service_rate)
        return known[2]

    def _is_owed_a_place(self, newcomer: Sequence, n_waiting: int) -> bool:
        """Whether the newcomer's tenant has less than an equal share of a full queue waiting."""
        if n_waiting >= OVERFLOW * self._options.scheduler.max_waiting:
            return False
        tenants: Counter[str] = Counter()
        for lane in self._lanes:
            tenants.update(self._estimate(lane, newcomer.seq).waiting)
        share = self._options.scheduler.max_waiting / len({*tenants, newcomer.request.tenant})
        return tenants[newcomer.request.tenant] < share
