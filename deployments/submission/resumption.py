"""A request's memory at the ingress: what it has emitted, so that another router can go on behind it.

Knows requests and events, no sockets.
"""

from __future__ import annotations

import time

import msgspec

from deployments.submission.messages import SubmitRequest
from engine.events import RequestStats, SourceCounts, StepEvent


class Resumption:
    """One request over all the routers it meets.

    Args:
        request: as the client sent it.
    """

    def __init__(self, request: SubmitRequest) -> None:
        self._request = request
        self._began = time.perf_counter()
        self._had: list[tuple[list[int], dict[str, SourceCounts] | None]] = []  # tokens and drafts of every event
        self._n_routers = 0

    def next_request(self) -> SubmitRequest:
        """What to ask the next router: the original request at first, then the rest of it."""
        self._n_routers += 1
        if self._n_routers == 1:
            return self._request
        emitted = [token for tokens, _ in self._had for token in tokens]
        return msgspec.structs.replace(self._request, emitted=[*self._request.emitted, *emitted], resumed=True)

    def take(self, event: StepEvent) -> StepEvent:
        """An event came; returned as the client shall see it: the last one's figures are those of the whole request."""
        if event.token_ids:  # an end without tokens is no step
            self._had.append((event.token_ids, event.drafts))
        if event.stats is None or self._n_routers == 1:
            return event
        return msgspec.structs.replace(event, stats=self._all_of_it(event.stats))

    def _all_of_it(self, last: RequestStats) -> RequestStats:
        """Figures over all routers; ``last`` is what the last one counted."""
        steps = self._had if self._request.emitted else self._had[1:]  # the first event of all is the prefill's
        by_source: dict[str, SourceCounts] = {}
        for _, drafts in steps:
            for name, counts in (drafts or {}).items():
                by_source[name] = counts.plus(by_source[name]) if name in by_source else counts
        drafted = [sum(counts.drafted for counts in (drafts or {}).values()) for _, drafts in steps]
        return RequestStats(
            prompt_tokens=len(self._request.prompt),
            target_forwards=len(steps),
            drafted_tokens=sum(drafted),
            accepted_tokens=sum(counts.accepted for counts in by_source.values()),
            step_tokens=[len(tokens) for tokens, _ in steps],
            max_nodes_used=max(last.max_nodes_used, *drafted, 0),  # probes of earlier routers are not known any more
            by_source=by_source,
            seconds=time.perf_counter() - self._began,
            preemptions=last.preemptions + self._n_routers - 1,
        )
