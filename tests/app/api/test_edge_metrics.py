"""What an ingress counts: answers by route and status, bodies, usage by tenant; clients cannot make series."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from app.telemetry.exchange import Exchange, Usage
from app.telemetry.metrics import ANONYMOUS, MOST_TENANTS, OTHER, EdgeMetrics, Routes

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}


async def test_answers_are_counted_by_route_method_and_status(client: httpx.AsyncClient, app: Any) -> None:
    chat = "/v1/chat/completions"
    for body in (CHAT, CHAT | {"stream": True}, CHAT | {"n": 2}, CHAT | {"top_p": 7}, CHAT | {"model": "m"}):
        await client.post(chat, json=body)
    for path in ("/v1/models/tiny", "/v1/models/org/alias", "/v1/models/none"):
        await client.get(path)
    for n in range(20):
        await client.request(f"ODD{n}", f"/nothing/{n}")
    await client.put("/version")
    registry: CollectorRegistry = app.state.access_log.metrics.registry

    def value(name: str, *labels: str, of: tuple[str, ...] = ("route", "method", "code")) -> float | None:
        return registry.get_sample_value(name, dict(zip(of, labels, strict=True)))

    requests = "spectra:http_requests_total"
    assert value(requests, chat, "POST", "200") == 3
    assert value(requests, chat, "POST", "400") == value(requests, chat, "POST", "404") == 1
    assert value(requests, "/v1/models/{name}", "GET", "200") == 2
    assert value(requests, "/v1/models/{name}", "GET", "404") == 1
    assert value(requests, OTHER, OTHER, "404") == 20
    assert value(requests, "/version", "PUT", "405") == 1
    assert value("spectra:http_request_size_bytes_count", chat, of=("route",)) == 5
    size = value("spectra:http_request_size_bytes_sum", chat, of=("route",))
    assert size is not None
    assert 5 * 60 < size < 5 * 200
    answer = (await client.post(chat, json=CHAT)).json()["usage"]
    tenant = (ANONYMOUS,)
    assert value("spectra:tenant_requests_total", *tenant, of=("tenant",)) == 4
    assert value("spectra:tenant_prompt_tokens_total", *tenant, of=("tenant",)) == 4 * answer["prompt_tokens"]
    assert value("spectra:tenant_generation_tokens_total", *tenant, of=("tenant",)) == 5 * answer["completion_tokens"]
    assert value("vllm:request_params_n_sum", "tiny", of=("model_name",)) == 5
    longest = value("vllm:request_max_num_generation_tokens_sum", "tiny", of=("model_name",))
    assert longest == 4 * answer["completion_tokens"]


def test_tenants_beyond_a_number_share_a_series() -> None:
    metrics = EdgeMetrics(CollectorRegistry(), "tiny", 100)
    for number in range(MOST_TENANTS + 50):
        usage = Usage(1, 1, 1, 1)
        exchange = Exchange("id", "POST", "/v1/completions", account=f"t{number}", usage=lambda usage=usage: usage)
        metrics.count(exchange, "")
    lines = generate_latest(metrics.registry).decode().splitlines()
    tenants = [line for line in lines if line.startswith("spectra:tenant_requests_total")]
    assert len(tenants) == MOST_TENANTS + 1
    assert f'spectra:tenant_requests_total{{tenant="{OTHER}"}} 50.0' in tenants


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/health", "/health"),
        ("/health/", OTHER),
        ("/v1/models/a/b", "/v1/models/{name}"),
        ("/v1/models", "/v1/models"),
        ("", OTHER),
    ],
)
def test_a_path_has_a_template_or_is_other(path: str, route: str) -> None:
    assert Routes(["/health", "/v1/models", "/v1/models/{name:path}"]).of(path) == route
