"""What a request has emitted, kept by the ingress, so that another router can go on behind it.

Knows requests and events, no sockets.
"""

from __future__ import annotations

import time

import msgspec

from engine.events import RequestStats, SourceCounts, StepEvent, histogram
from engine.request import Request


class ReplayLog:
    """One request over all the routers that run it.

    Args:
        request: as the client sent it.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._began = time.perf_counter()
        self._taken: list[tuple[list[int], dict[str, SourceCounts] | None]] = []  # tokens and drafts of every event
        self._n_routers = 0

    def next_request(self) -> Request:
        """The request for the next router: the original one at first, then what is left of it."""
        self._n_routers += 1
        if self._n_routers == 1:
            return self._request
        emitted = [token for tokens, _ in self._taken for token in tokens]
        return msgspec.structs.replace(self._request, emitted=[*self._request.emitted, *emitted], resumed=True)

    def take(self, event: StepEvent) -> StepEvent:
        """Record an event of the current router; returned as the client sees it: the last one's figures cover all."""
        if event.token_ids:  # an end without tokens is no step
            self._taken.append((event.token_ids, event.drafts))
        if event.stats is None or self._n_routers == 1:
            return event
        return msgspec.structs.replace(event, stats=self._total(event.stats))

    def _total(self, last: RequestStats) -> RequestStats:
        """Figures over all routers; ``last`` is what the last router counted, whose phases are its own."""
        steps = self._taken if self._request.emitted else self._taken[1:]  # the first event of all is the prefill's
        by_source: dict[str, SourceCounts] = {}
        for _, drafts in steps:
            for name, counts in (drafts or {}).items():
                by_source[name] = counts.plus(by_source[name]) if name in by_source else counts
        accepted = [sum(counts.accepted for counts in (drafts or {}).values()) for _, drafts in steps]
        drafted = [sum(counts.drafted for counts in (drafts or {}).values()) for _, drafts in steps]
        return RequestStats(
            prompt_tokens=len(self._request.prompt),
            target_forwards=len(steps),
            drafted_tokens=sum(drafted),
            accepted_tokens=sum(accepted),
            step_tokens=[len(tokens) for tokens, _ in steps],
            accepted_steps=histogram(accepted),
            max_nodes_used=max(last.max_nodes_used, *drafted, 0),  # the probes of earlier routers are lost with them
            by_source=by_source,
            seconds=time.perf_counter() - self._began,
            queue_seconds=last.queue_seconds,
            prefill_seconds=last.prefill_seconds,
            decode_seconds=last.decode_seconds,
            preemptions=last.preemptions + self._n_routers - 1,
            decisions=last.decisions,  # those of earlier routers are lost with them, too
        )
