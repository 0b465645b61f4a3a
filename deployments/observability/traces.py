"""Spans of requests for an OpenTelemetry collector, off by default.

Nothing here costs anything per token: a span is made of times that were recorded anyway, once its request is over.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import Span

EXPORTER = "opentelemetry.exporter.otlp.proto.http"
SEND_EVERY_MS = 1000
NAME = "traceparent"  # as W3C Trace Context has it


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Where the spans of a process go; without an endpoint, where OpenTelemetry's own environment variables say."""

    on: bool = False
    endpoint: str = ""  # URL of a collector that takes OTLP over HTTP


def can_export() -> bool:
    """Whether the exporter is installed."""
    try:
        return importlib.util.find_spec(EXPORTER) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


def tracer_of(options: TraceOptions, process: str) -> Tracer | None:
    """The tracer of this process, such as "Router"; None if requests are not traced."""
    return Tracer(options.endpoint, process) if options.on else None


class Tracer:
    """Makes spans and sends them from a thread of its own; a collector that does not answer costs spans, nothing else.

    Args:
        endpoint: URL of the collector; "": as OpenTelemetry's environment variables say.
        process: what this process is.
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
        """Begin the span of a request from outside; ``traceparent`` is the client's, "" for none."""
        from opentelemetry.trace import SpanKind

        parent = self._propagator.extract({NAME: traceparent})
        return self._tracer.start_span(name, parent, SpanKind.SERVER)

    def traceparent_of(self, span: Span) -> str:
        """What makes spans of other processes its children; "" if the client wants no trace."""
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        if span.is_recording():
            self._propagator.inject(carrier, set_span_in_context(span))
        return carrier.get(NAME, "")

    def add(self, name: str, traceparent: str, began: float, ended: float, attributes: Mapping[str, Any]) -> None:
        """Make a span that is over; its times are those of ``time.perf_counter``."""
        offset = time.time_ns() - time.perf_counter_ns()
        parent = self._propagator.extract({NAME: traceparent})
        at = [int(seconds * 1e9) + offset for seconds in (began, ended)]
        self._tracer.start_span(name, parent, attributes=dict(attributes), start_time=at[0]).end(at[1])

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
