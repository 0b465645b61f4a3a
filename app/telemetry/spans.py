"""The ingress's span of a request, with OpenTelemetry's attributes for generative models."""

from __future__ import annotations

from opentelemetry.trace import Span, Status, StatusCode

from app.telemetry.exchange import Exchange

ATTRIBUTES = {  # by the name of a figure in the access log
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "choices": "gen_ai.request.choice.count",
    "ttft_s": "gen_ai.response.time_to_first_chunk",
    "method": "spectra.speculation.method",
    "accepted_per_step": "spectra.speculation.accepted_per_step",
}


def end_span(span: Span, exchange: Exchange) -> None:
    """Write what is known of an exchange into its span, and end that."""
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
        known = {ATTRIBUTES[name]: value for name, value in figures.items() if name in ATTRIBUTES and value is not None}
        span.set_attributes(known)  # type: ignore[arg-type]  # figures are numbers and names
        if figures["finish_reason"]:
            span.set_attribute("gen_ai.response.finish_reasons", str(figures["finish_reason"]).split(","))
    if exchange.refusal is not None:
        span.set_attribute("error.type", exchange.refusal.code or str(exchange.refusal.status))
        span.set_status(Status(StatusCode.ERROR))
    span.end()
