"""Request spans for an OpenTelemetry collector; off by default.

A span is built once its request is over, from times that are recorded anyway. Tracing costs nothing per token.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.scheduling.sequence import Sequence

if TYPE_CHECKING:
    from opentelemetry.trace import Span

SEND_EVERY_MS = 1000
TRACEPARENT = "traceparent"  # header of W3C Trace Context


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Destination of spans; without an endpoint, OpenTelemetry's environment variables decide."""

    on: bool = False
    endpoint: str = ""  # URL of a collector that takes OTLP over HTTP


def tracer_of(options: TraceOptions, process: str) -> Tracer | None:
    """The tracer of the process, such as "Router"; None when tracing is off."""
    return Tracer(options.endpoint, process) if options.on else None


class Tracer:
    """Builds spans and sends them from its own thread. A collector that does not answer costs spans, nothing else.

    Args:
        endpoint: URL of the collector; "": as OpenTelemetry's environment variables say.
        process: name of the process.
    """

    def __init__(self, endpoint: str, process: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None)
        resource = Resource.create({"service.name": "spectra-serve", "spectra.process": process})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=SEND_EVERY_MS))
        self._tracer = self._provider.get_tracer("spectra-serve")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, name: str, traceparent: str) -> Span:
        """Begin the server span of an HTTP request; ``traceparent`` is the client's header, "" for none."""
        from opentelemetry.trace import SpanKind

        parent = self._propagator.extract({TRACEPARENT: traceparent})
        return self._tracer.start_span(name, parent, SpanKind.SERVER)

    def traceparent_of(self, span: Span) -> str:
        """The header that makes spans of other processes children of ``span``; "" if the client wants no trace."""
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        if span.is_recording():
            self._propagator.inject(carrier, set_span_in_context(span))
        return carrier.get(TRACEPARENT, "")

    def add(self, name: str, traceparent: str, began: float, ended: float, attributes: Mapping[str, Any]) -> None:
        """Send a finished span; ``began`` and ``ended`` are values of ``time.perf_counter``."""
        offset = time.time_ns() - time.perf_counter_ns()
        parent = self._propagator.extract({TRACEPARENT: traceparent})
        start, end = (int(seconds * 1e9) + offset for seconds in (began, ended))
        self._tracer.start_span(name, parent, attributes=dict(attributes), start_time=start).end(end)

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()


@dataclass(slots=True)
class _DraftingTime:
    began: float  # of the first round, as ``time.perf_counter``
    ended: float = 0.0  # of the last round
    seconds: float = 0.0  # of all rounds; requests share a round
    rounds: int = 0


class RequestSpans:
    """The router's spans of traced requests: queue, prefill, decode and draft.

    Args:
        tracer: of the router.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._drafting: dict[int, _DraftingTime] = {}  # by sequence

    def count_round(self, sequences: Iterable[Sequence], began: float) -> None:
        """Add a round of drafting that began at ``began`` and ends now."""
        now = time.perf_counter()
        for sequence in sequences:
            if sequence.request.traceparent:
                drafting = self._drafting.setdefault(sequence.seq, _DraftingTime(began))
                drafting.ended = now
                drafting.seconds += now - began
                drafting.rounds += 1

    def finish(self, sequence: Sequence) -> None:
        """Send the spans of a request that has finished, failed or been cancelled."""
        drafting, request = self._drafting.pop(sequence.seq, None), sequence.request
        if not request.traceparent:
            return
        stats, now = sequence.stats, time.perf_counter()
        entered, prefilled = stats.entered or now, stats.prefilled or now
        common = {"spectra.request.id": request.request_id, "spectra.choice": request.params.choice}
        add, parent = self._tracer.add, request.traceparent
        add("queue", parent, stats.began, entered, common)
        if stats.entered is not None:
            read = {"gen_ai.usage.input_tokens": stats.n_prompt, "gen_ai.usage.cache_read.input_tokens": stats.n_cached}
            add("prefill", parent, entered, prefilled, common | read)
        if stats.prefilled is not None:
            written = {
                "gen_ai.usage.output_tokens": sequence.n_output,
                "spectra.speculation.method": request.method,
                "spectra.speculation.steps": len(stats.step_tokens),
                "spectra.speculation.accepted_tokens": stats.n_accepted,
            }
            add("decode", parent, prefilled, now, common | written)
        if drafting is not None:
            took = {"spectra.draft.seconds": drafting.seconds, "spectra.draft.rounds": drafting.rounds}
            add("draft", parent, drafting.began, drafting.ended, common | took)
