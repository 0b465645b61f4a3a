"""The access log: one line per request, at its end. A refusal is a warning with its reason; floods are cut."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable

from opentelemetry.trace import Span, Status, StatusCode

from app.telemetry import exchange as exchanges
from app.telemetry.exchange import MOST_CHARS, Exchange, LoggedFields, Refusal
from app.telemetry.metrics import EdgeMetrics
from deployments.observability.logs import LogRateLimiter, choose_request_id, current_request_id
from deployments.observability.traces import Tracer

MOST_REFUSALS, SPAN_S = 10, 60.0  # lines per reason in this time
MOST_PROMPT_CHARS = 2000
PAGES = "/playground/"  # a browser fetches dozens of files
PROBES = frozenset({"/health", "/ready", "/ping", "/metrics"})  # requested every few seconds by machines
SPAN_ATTRIBUTES = {  # by the name of a figure in the access log
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "choices": "gen_ai.request.choice.count",
    "ttft_s": "gen_ai.response.time_to_first_chunk",
    "method": "spectra.speculation.method",
    "accepted_per_step": "spectra.speculation.accepted_per_step",
}

logger = logging.getLogger("spectra.access")


class AccessLog:
    """Begins and ends the exchanges of one process.

    Args:
        served: whether requests that were served have a line, in addition to refusals.
        tracer: makes a span of every exchange but probes and files of pages; None: none is traced.
    """

    def __init__(
        self, fields: LoggedFields, metrics: EdgeMetrics, served: bool = True, tracer: Tracer | None = None
    ) -> None:
        self._tracer = tracer
        self._fields = fields
        self.metrics = metrics
        self._served = served
        self._gate = LogRateLimiter(MOST_REFUSALS, SPAN_S, self._log_left_out)

    def begin(self, method: str, path: str, given_id: str | None = None, traceparent: str | None = None) -> Exchange:
        """Begin an exchange in the running task, whose log lines hold the request's id from now on.

        The id is ``given_id``, the header ``X-Request-Id``, or a random one if that is missing or not fit for a log.
        """
        exchange = Exchange(choose_request_id(given_id), method, path)
        if self._tracer is not None and not _is_minor(path):
            exchange.span = self._tracer.begin(method, traceparent or "")
            exchange.traceparent = self._tracer.traceparent_of(exchange.span)
        current_request_id.set(exchange.request_id)
        exchanges.begin(exchange)
        return exchange

    def end(self, exchange: Exchange) -> None:
        if exchange.span is not None:
            _end_span(exchange.span, exchange)
        refusal = exchange.refusal
        field = "" if refusal is None else self._fields.named(refusal.param)
        self.metrics.count(exchange, field)
        if refusal is not None:
            self._refused(exchange, refusal, field)
        elif self._served:
            level = logging.DEBUG if _is_minor(exchange.path) else logging.INFO
            if logger.isEnabledFor(level):
                shown = exchange.method, exchange.path[:MOST_CHARS], exchange.status or "-"
                logger.log(level, "%s %s %s", *shown, extra=self._line(exchange))

    def _refused(self, exchange: Exchange, refusal: Refusal, field: str) -> None:
        if self._gate.admits((refusal.status, refusal.code, field), time.monotonic()):
            extra = {"code": refusal.code, "field": refusal.param[:MOST_CHARS] or None} | self._line(exchange)
            shown = exchange.method, exchange.path[:MOST_CHARS], refusal.status, self._fields.loggable(refusal)
            logger.warning("%s %s %d: %s", *shown, extra=extra)

    def _line(self, exchange: Exchange) -> dict[str, object]:
        """The fields of a line; those that are None are left out."""
        seconds = time.perf_counter() - exchange.began
        return {
            "request_id": exchange.request_id,
            "tenant": exchange.tenant[:MOST_CHARS] or None,
            "key": exchange.key_id or None,
            **(exchange.figures() if exchange.figures is not None else {}),
            "total_s": round(seconds, 4),
            "client_gone": exchange.is_client_gone or None,
            "prompt": exchange.prompt[:MOST_PROMPT_CHARS] or None,
        }

    def _log_left_out(self, kind: Hashable, n: int) -> None:
        assert isinstance(kind, tuple)
        status, code, field = kind
        extra = {"code": code, "field": field or None, "request_id": None}
        logger.warning("%d more requests were refused with %d %s within %g s", n, status, code, SPAN_S, extra=extra)


def _is_minor(path: str) -> bool:
    return path in PROBES or path.startswith(PAGES)


def _end_span(span: Span, exchange: Exchange) -> None:
    span.set_attribute("spectra.request.id", exchange.request_id)
    if exchange.status:
        span.set_attribute("http.response.status_code", exchange.status)
    if exchange.tenant:
        span.set_attribute("spectra.tenant", exchange.tenant[:128])
    figures = exchange.figures() if exchange.figures is not None else {}
    if figures:
        operation = "chat" if "/chat/" in exchange.path else "text_completion"
        span.update_name(f"{operation} {figures['model']}")
        span.set_attributes({"gen_ai.operation.name": operation, "gen_ai.provider.name": "spectra"})
        known = {key: figures[name] for name, key in SPAN_ATTRIBUTES.items() if figures.get(name) is not None}
        span.set_attributes(known)  # type: ignore[arg-type]  # figures are numbers and names
        if figures["finish_reason"]:
            span.set_attribute("gen_ai.response.finish_reasons", str(figures["finish_reason"]).split(","))
    if exchange.refusal is not None:
        span.set_attribute("error.type", exchange.refusal.code or str(exchange.refusal.status))
        span.set_status(Status(StatusCode.ERROR))
    span.end()
