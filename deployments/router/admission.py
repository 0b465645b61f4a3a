"""Admission: fills in the server's defaults, and refuses requests that cannot be served, or not in time.

A resumed request is not checked again: its lost router admitted it. It may even be complete except for its end.
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

MIN_RETRY_S = 1.0  # least ``retry_after``
ESTIMATE_TTL_S = 0.05  # of an estimate, unless a request is admitted: a flood of refusals must not delay steps
MAX_OVERFLOW = 2  # times ``max_waiting``: the most requests of all tenants that wait


def fill_defaults(request: Request, options: RouterOptions) -> Request:
    """Return the request with the server's method if it names none; the shared namespace becomes "".

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
    """Methods that a request may name: the server's list if there is one, else ``available``.

    The server's own method and plain decoding are always listed. A method with an unavailable part is left out.
    """
    listed = options.methods or available
    allowed = dict.fromkeys((options.method, AUTOREGRESSIVE, *listed))
    return tuple(method for method in allowed if all(name in available for name in method.split("+")))


def _allowed(method: str, options: RouterOptions) -> str:
    """Return the method in normal spelling; raises UnknownMethodError if requests may not name it."""
    method = normalised(method)
    if options.methods and method not in (options.method, AUTOREGRESSIVE):
        check_allowed(method, options.methods)
    return method


def finish_event(request: Request) -> StepEvent | None:
    """Return the final event of a resumed request that has all its output already; None if output is missing.

    A lost router can have sent all tokens of a request, but not its end. The event has no tokens.
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
    """Admits or refuses new requests.

    Limits hold over all lanes: ``max_sequences`` requests may run per lane that accepts requests, and ``max_waiting``
    may wait. A full queue still admits a tenant that has less than an equal share of it waiting: the flood of one
    tenant must not shut out the others. If there is room, a request is refused when its estimated wait exceeds
    ``max_wait``.

    Args:
        lanes: all of them.
        options: of the router, with ``max_wait``, and the scheduler's ``max_sequences`` and ``max_waiting``.
        clock: returns seconds.
    """

    def __init__(self, lanes: list[Lane], options: RouterOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._lanes = lanes
        self._options = options
        self._clock = clock
        # Lane -> ``seq`` of the sequence that the estimate was made for, time of the estimate, and the estimate.
        self._estimates: dict[Lane, tuple[int, float, WaitEstimate]] = {}

    def check(self, sequence: Sequence, lane: Lane) -> None:
        """Raise OverloadedError, with ``retry_after`` seconds, if ``sequence`` should not queue in ``lane`` now.

        ``sequence.seq`` is the number of sequences that were admitted before it.
        """
        limits = self._options.scheduler
        live = sum(len(other.sequences) for other in self._lanes)
        n_waiting = live - limits.max_sequences * max(1, sum(other.accepts_requests for other in self._lanes))
        if n_waiting < 0 and not lane.n_waiting:  # when KV blocks are short, a queue forms before all slots are taken
            return
        wait = self._estimate(lane, sequence.seq).seconds(sequence)
        if n_waiting >= limits.max_waiting and not self._is_below_share(sequence, n_waiting):
            retry = wait / 2 if wait else MIN_RETRY_S
            raise OverloadedError(f"{n_waiting} requests are waiting already", max(MIN_RETRY_S, retry))
        bound = self._options.max_wait
        if bound is not None and wait is not None and wait > bound:
            raise OverloadedError(
                f"the wait would be about {wait:.0f} s, more than {bound:g} s", max(MIN_RETRY_S, wait - bound)
            )

    def _estimate(self, lane: Lane, n_before: int) -> WaitEstimate:
        """The lane's estimate; a new one after an admission, or when it is older than ``ESTIMATE_TTL_S``."""
        now = self._clock()
        known = self._estimates.get(lane)
        if known is None or known[0] != n_before or now - known[1] > ESTIMATE_TTL_S:
            known = self._estimates[lane] = n_before, now, WaitEstimate(lane.scheduler, lane.service_rate)
        return known[2]

    def _is_below_share(self, sequence: Sequence, n_waiting: int) -> bool:
        """Whether the sequence's tenant has less than an equal share of a full queue waiting."""
        if n_waiting >= MAX_OVERFLOW * self._options.scheduler.max_waiting:
            return False
        tenants: Counter[str] = Counter()
        for lane in self._lanes:
            tenants.update(self._estimate(lane, sequence.seq).waiting)
        share = self._options.scheduler.max_waiting / len({*tenants, sequence.request.tenant})
        return tenants[sequence.request.tenant] < share
