"""Traces: a real collector gets the spans of a request from the edge and from the router, children of the client's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app.api.application import create_app
from app.api.http import Api
from app.api.service import Settings
from app.composition.operation import trace_options
from app.config.serve import ServeConfig
from deployments.observability import traces
from deployments.observability.request_spans import RequestSpans
from deployments.observability.traces import TraceOptions, Tracer, tracer_of
from engine.errors import ConfigError
from engine.request import Request
from tests.app.conftest import ScriptedBackend
from tests.deployments.conftest import Serving
from tests.support.otlp_collector import attributes_of, collector
from tests.support.tiny_models import tiny_tokenizer

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def test_the_router_tells_how_long_a_traced_request_waited_was_read_written_and_drafted(
    serving: Serving, make_job: Callable[..., Request]
) -> None:
    with collector() as got:
        tracer = Tracer(got.url, "Router")
        async with serving(spans=RequestSpans(tracer)) as served:
            await served.answer(make_job(1, "pld"))
            answer = await served.answer(
                make_job(2, "pld"),
                traceparent=f"00-{TRACE}-{PARENT}-01",
                request_id="r-2",
            )
            assert not served.router._spans._drafting  # type: ignore[union-attr]
        tracer.close()
    assert got.processes == {"Router"}
    assert sorted(span.name for span in got.spans) == ["decode", "draft", "prefill", "queue"]
    assert {(span.trace_id.hex(), span.parent_span_id.hex()) for span in got.spans} == {(TRACE, PARENT)}
    queue, prefill, decode = (got.named(name) for name in ("queue", "prefill", "decode"))
    assert queue.start_time_unix_nano <= queue.end_time_unix_nano <= prefill.end_time_unix_nano
    assert prefill.end_time_unix_nano < decode.end_time_unix_nano
    known = attributes_of(decode)
    assert known["spectra.request.id"] == "r-2"
    assert known["gen_ai.usage.output_tokens"] == len(answer.token_ids)
    assert known["spectra.speculation.method"] == "pld"
    assert attributes_of(got.named("draft"))["spectra.draft.rounds"] > 0


async def test_the_edge_makes_a_span_below_the_clients_and_hands_its_own_on() -> None:
    tokenizer = tiny_tokenizer(400)
    backend = ScriptedBackend(tokenizer)
    with collector() as got:
        tracer = Tracer(got.url, "Ingress")
        transport = httpx.ASGITransport(app=create_app(Api(backend, tokenizer, Settings(), tracer)))
        async with httpx.AsyncClient(transport=transport, base_url="http://edge") as client:
            body = {"model": "tiny", "prompt": "x", "max_tokens": 9, "temperature": 0}
            for path, flag, more in (
                ("completions", "01", {}),
                ("completions", "00", {}),
                ("completions", "01", {"n": 0}),
            ):
                headers = {"traceparent": f"00-{TRACE}-{PARENT}-{flag}"}
                await client.post(f"/v1/{path}", json=body | more, headers=headers)
            await client.get("/health")
        tracer.close()
    assert [span.name for span in got.spans] == ["text_completion tiny", "POST"]
    whole, refused = got.spans
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, PARENT)
    known: dict[str, Any] = attributes_of(whole)
    assert (known["gen_ai.operation.name"], known["gen_ai.request.model"]) == ("text_completion", "tiny")
    assert known["gen_ai.usage.output_tokens"] == 9
    assert known["gen_ai.response.finish_reasons"] == ["length"]
    assert known["http.response.status_code"] == 200
    assert attributes_of(refused)["error.type"] == "invalid_request"
    assert [seen.traceparent for seen in backend.seen] == [f"00-{TRACE}-{whole.span_id.hex()}-01", ""]


def test_without_traces_there_is_no_tracer_and_without_the_exporter_the_flag_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert tracer_of(TraceOptions(), "Router") is None
    monkeypatch.setattr(traces, "EXPORTER", "opentelemetry.exporter.nothing.http")
    assert trace_options(ServeConfig()) == TraceOptions()
    with pytest.raises(ConfigError, match=r"pip install 'spectra-serve\[traces\]'"):
        trace_options(ServeConfig(traces=True))
    with pytest.raises(ValueError, match="otlp_endpoint is http://x, but has no effect"):
        ServeConfig(otlp_endpoint="http://x")
