"""Resumed requests: the end of a request that a lost router left with its output complete."""

from __future__ import annotations

from engine.events import LENGTH, STOP, StepEvent
from engine.request import Request
from engine.scheduling.stats import StatsCounter


def finish_of(request: Request) -> StepEvent | None:
    """The last event, without tokens, of a request whose emitted tokens are its whole output; None otherwise."""
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
