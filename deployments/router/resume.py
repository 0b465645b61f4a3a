"""From a request to its sequence; a resumed request goes on behind the tokens that a lost router emitted."""

from __future__ import annotations

from deployments.submission.messages import SubmitRequest
from engine.events import LENGTH, STOP, StepEvent
from engine.protocol import Needs
from engine.scheduling.sequence import Sequence
from engine.scheduling.stats import StatsCounter


def sequence_of(request: SubmitRequest, seq: int, method: str, max_nodes: int, needs: Needs) -> Sequence:
    """The sequence of a request; its text is the prompt and the tokens that were emitted already."""
    return Sequence(
        seq,
        [*request.prompt, *request.emitted],
        len(request.prompt),
        request.params,
        StatsCounter(len(request.prompt)),
        method,
        max_nodes,
        request.priority,
        needs,
        namespace=request.namespace,
        tenant=request.tenant,
    )


def finish_of(request: SubmitRequest) -> StepEvent | None:
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
