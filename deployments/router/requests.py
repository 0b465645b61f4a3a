"""What the router makes of a request: the server's defaults and limits, and the end of a request that is resumed."""

from __future__ import annotations

import msgspec

from deployments.options import RouterOptions
from engine.errors import RequestError
from engine.events import LENGTH, STOP, StepEvent
from engine.request import Request
from engine.scheduling.stats import StatsCounter
from engine.target.info import MAX_TREE


def as_served(request: Request, options: RouterOptions) -> Request:
    """The request with the server's defaults filled in; the shared namespace becomes none.

    Raises:
        RequestError: ``max_nodes`` is above the server's limit.
    """
    limit, wanted = min(options.limit_nodes, MAX_TREE, options.scheduler.max_step_rows - 1), request.max_nodes
    if wanted is not None and wanted > limit:
        raise RequestError(f"max_nodes is {wanted}; this server drafts at most {limit} nodes per step", "max_nodes")
    if request.namespace == options.shared_namespace:
        request = msgspec.structs.replace(request, namespace="")
    return request.with_defaults(options.method, options.max_nodes)


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
