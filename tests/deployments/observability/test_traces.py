"""Traces: the spans of a request at the edge and in the router are children of the client's."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app.api.application import create_app
from app.api.http import Api
from app.api.service import ServiceSettings
from deployments.observability.traces import RequestSpans, Tracer
from tests.app.conftest import ScriptedBackend
from tests.deployments.conftest import Serving, job_of
from tests.support.tiny_models import tiny_tokenizer

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Exporter(InMemorySpanExporter):
    """Keeps the spans that would be sent to a collector."""

    def __call__(self, endpoint: str) -> Exporter:
        assert endpoint == "http://collector/v1/traces"
        return self

    @property
    def spans(self) -> list[Any]:
        return list(self.get_finished_spans())


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Exporter:
    exporter = Exporter()
    monkeypatch.setattr(trace_exporter, "OTLPSpanExporter", exporter)
    return exporter


async def test_the_router_sends_the_phases_of_a_traced_request(serving: Serving, exporter: Exporter) -> None:
    tracer = Tracer("http://collector/", "Router")
    async with serving(spans=RequestSpans(tracer)) as served:
        await served.answer(job_of(1, "pld"))
        parent = f"00-{TRACE}-{PARENT}-01"
        answer = await served.answer(job_of(2, "pld"), traceparent=parent, request_id="r-2")
        assert not served.router._spans._drafting  # type: ignore[union-attr]
    tracer.close()
    spans = {span.name: span for span in exporter.spans}
    assert spans.keys() == {"decode", "draft", "prefill", "queue"}
    parents = {(span.parent.trace_id, span.parent.span_id) for span in spans.values()}
    assert parents == {(int(TRACE, 16), int(PARENT, 16))}
    assert {span.resource.attributes["spectra.process"] for span in spans.values()} == {"Router"}
    ends = [spans[name].end_time for name in ("queue", "prefill", "decode")]
    assert ends == sorted(ends)
    known = spans["decode"].attributes
    assert known["spectra.request.id"] == "r-2"
    assert known["gen_ai.usage.output_tokens"] == len(answer.token_ids)
    assert known["spectra.speculation.method"] == "pld"
    assert spans["draft"].attributes["spectra.draft.rounds"] > 0


async def test_the_span_of_the_edge_is_a_child_of_the_clients_and_the_parent_of_the_routers(exporter: Exporter) -> None:
    tokenizer = tiny_tokenizer(400)
    backend = ScriptedBackend(tokenizer)
    tracer = Tracer("http://collector", "Ingress")
    transport = httpx.ASGITransport(app=create_app(Api(backend, tokenizer, ServiceSettings(), tracer)))
    async with httpx.AsyncClient(transport=transport, base_url="http://edge") as client:
        body = {"model": "tiny", "prompt": "x", "max_tokens": 9, "temperature": 0}
        for flag, more in (("01", {}), ("00", {}), ("01", {"n": 0})):
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-{flag}"}
            await client.post("/v1/completions", json=body | more, headers=headers)
        await client.get("/health")
    tracer.close()
    assert [span.name for span in exporter.spans] == ["text_completion tiny", "POST"]
    whole, refused = exporter.spans
    assert (whole.parent.trace_id, whole.parent.span_id) == (int(TRACE, 16), int(PARENT, 16))
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "tiny",
        "gen_ai.usage.output_tokens": 9,
        "gen_ai.response.finish_reasons": ("length",),
        "http.response.status_code": 200,
    }
    assert expected.items() <= dict(whole.attributes).items()
    assert refused.attributes["error.type"] == "invalid_request"
    assert [seen.traceparent for seen in backend.seen] == [f"00-{TRACE}-{whole.context.span_id:016x}-01", ""]
