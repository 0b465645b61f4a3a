"""The router's part of a request's trace: how long it waited, was read, was written, and what drafting took of that."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from deployments.observability.traces import Tracer
from engine.scheduling.sequence import Sequence


@dataclass(slots=True)
class _Drafting:
    began: float  # of the first round, as ``time.perf_counter`` has it
    ended: float = 0.0  # of the last
    seconds: float = 0.0  # of all rounds; a round serves many requests together
    rounds: int = 0


class RequestSpans:
    """Makes the spans of the requests that are traced.

    Args:
        tracer: of the router.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._drafting: dict[int, _Drafting] = {}  # by sequence

    def drafted(self, sequences: Iterable[Sequence], began: float) -> None:
        """A round of drafting is over that began at ``began``."""
        now = time.perf_counter()
        for sequence in sequences:
            if sequence.request.traceparent:
                drafting = self._drafting.setdefault(sequence.seq, _Drafting(began))
                drafting.ended = now
                drafting.seconds += now - began
                drafting.rounds += 1

    def ended(self, sequence: Sequence) -> None:
        """The request of a sequence is over, whether it came to its end or not."""
        drafting, request = self._drafting.pop(sequence.seq, None), sequence.request
        if not request.traceparent:
            return
        stats, now = sequence.stats, time.perf_counter()
        entered, prefilled = stats.entered or now, stats.prefilled or now
        known = {"spectra.request.id": request.request_id, "spectra.choice": request.params.choice}
        add, parent = self._tracer.add, request.traceparent
        add("queue", parent, stats.began, entered, known)
        if stats.entered is not None:
            read = {"gen_ai.usage.input_tokens": stats.n_prompt, "gen_ai.usage.cache_read.input_tokens": stats.n_cached}
            add("prefill", parent, entered, prefilled, known | read)
        if stats.prefilled is not None:
            written = {
                "gen_ai.usage.output_tokens": sequence.n_output,
                "spectra.speculation.method": request.method,
                "spectra.speculation.steps": len(stats.step_tokens),
                "spectra.speculation.accepted_tokens": stats.n_accepted,
            }
            add("decode", parent, prefilled, now, known | written)
        if drafting is not None:
            took = {"spectra.draft.seconds": drafting.seconds, "spectra.draft.rounds": drafting.rounds}
            add("draft", parent, drafting.began, drafting.ended, known | took)
