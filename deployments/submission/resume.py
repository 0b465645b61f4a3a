"""Resumes a request on the next router, or a reader on the next answer keeper: knows what has been received so far."""

from __future__ import annotations

import time

import msgspec

from deployments.submission.protocol import AnswerReference
from engine.events import RequestStats, SourceCounts, StepEvent, histogram
from engine.request import Request


class ResumableRequest:
    """One request, over all the routers that run it.

    Args:
        request: as the client sent it.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._began = time.perf_counter()
        self._steps: list[tuple[list[int], dict[str, SourceCounts] | None]] = []  # tokens and drafts of every event
        self._n_routers = 0

    def next_submission(self) -> Request:
        """The request for the next router: first the original, later one that resumes after the emitted tokens."""
        self._n_routers += 1
        if self._n_routers == 1:
            return self._request
        emitted = [token for tokens, _ in self._steps for token in tokens]
        return msgspec.structs.replace(self._request, emitted=[*self._request.emitted, *emitted], resumed=True)

    def record(self, event: StepEvent) -> StepEvent:
        """Record an event; returns it for the client, whose final statistics cover all routers."""
        if event.token_ids:  # an end without tokens is no step
            self._steps.append((event.token_ids, event.drafts))
        if event.stats is None or self._n_routers == 1:
            return event
        return msgspec.structs.replace(event, stats=self._sum_stats(event.stats))

    def _sum_stats(self, last: RequestStats) -> RequestStats:
        """Statistics over all routers; times of phases, probes and decisions are those of the last router alone."""
        steps = self._steps if self._request.emitted else self._steps[1:]  # the first event belongs to the prefill
        drafts = [drafts or {} for _, drafts in steps]
        by_source: dict[str, SourceCounts] = {}
        for one in drafts:
            for name, counts in one.items():
                by_source[name] = counts.plus(by_source[name]) if name in by_source else counts
        accepted = [sum(counts.accepted for counts in one.values()) for one in drafts]
        drafted = [sum(counts.drafted for counts in one.values()) for one in drafts]
        return RequestStats(
            prompt_tokens=len(self._request.prompt),
            target_forwards=len(steps),
            drafted_tokens=sum(drafted),
            accepted_tokens=sum(accepted),
            step_tokens=[len(tokens) for tokens, _ in steps],
            accepted_steps=histogram(accepted),
            max_nodes_used=max(last.max_nodes_used, *drafted, 0),
            by_source=by_source,
            seconds=time.perf_counter() - self._began,
            queue_seconds=last.queue_seconds,
            prefill_seconds=last.prefill_seconds,
            decode_seconds=last.decode_seconds,
            preemptions=last.preemptions + self._n_routers - 1,
            decisions=last.decisions,
        )


class FollowedAnswer:
    """One reader of an answer, over all the answer keepers that have it.

    Args:
        reference: from which token on.
    """

    def __init__(self, reference: AnswerReference) -> None:
        self._reference = reference

    def next_submission(self) -> AnswerReference:
        """The reference for the next answer keeper."""
        return self._reference

    def record(self, event: StepEvent) -> StepEvent:
        """Continue after the tokens of ``event``, and return it."""
        after = self._reference.after + len(event.token_ids)
        self._reference = msgspec.structs.replace(self._reference, after=after)
        return event
