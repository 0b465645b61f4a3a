"""Metrics of an edge: answers by route and status, body sizes, usage by tenant; clients cannot create series."""

from __future__ import annotations

from typing import Any

from httpx import AsyncClient
from prometheus_client import CollectorRegistry, generate_latest

from app.telemetry.exchange import OTHER, Exchange, ExchangeUsage
from app.telemetry.metrics import ANONYMOUS, MOST_TENANTS, EdgeMetrics

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}


async def test_answers_are_counted_by_route_method_and_status(client: AsyncClient, app: Any) -> None:
    chat = "/v1/chat/completions"
    usage = (await client.post(chat, json=CHAT)).json()["usage"]
    for more in ({"stream": True}, {"n": 2}, {"top_p": 7}, {"model": "m"}):
        await client.post(chat, json=CHAT | more)
    for path in ("/v1/models/tiny", "/v1/models/org/alias", "/v1/models/none"):
        await client.get(path)
    for n in range(20):
        await client.request(f"ODD{n}", f"/nothing/{n}")
    await client.put("/version")
    registry: CollectorRegistry = app.state.access_log.metrics.registry

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    counts = {
        (chat, "POST", "200"): 3,
        (chat, "POST", "400"): 1,
        (chat, "POST", "404"): 1,
        ("/v1/models/{name}", "GET", "200"): 2,
        ("/v1/models/{name}", "GET", "404"): 1,
        (OTHER, OTHER, "404"): 20,
        ("/version", "PUT", "405"): 1,
    }
    for (route, method, code), n in counts.items():
        assert value("spectra:http_requests_total", route=route, method=method, code=code) == n
    assert value("spectra:http_request_size_bytes_count", route=chat) == 5
    assert 5 * 60 < (value("spectra:http_request_size_bytes_sum", route=chat) or 0) < 5 * 200
    prompt, answer = usage["prompt_tokens"], usage["completion_tokens"]
    assert value("spectra:tenant_requests_total", tenant=ANONYMOUS) == 3
    assert value("spectra:tenant_prompt_tokens_total", tenant=ANONYMOUS) == 3 * prompt
    assert value("spectra:tenant_generation_tokens_total", tenant=ANONYMOUS) == 4 * answer
    assert value("vllm:request_params_n_sum", model_name="tiny") == 4
    assert value("vllm:request_max_num_generation_tokens_sum", model_name="tiny") == 3 * answer


def test_tenants_beyond_the_limit_share_a_series() -> None:
    metrics = EdgeMetrics(CollectorRegistry(), "tiny", 100)
    for number in range(MOST_TENANTS + 50):
        usage = ExchangeUsage(1, 1, 1, 1)
        exchange = Exchange("id", "POST", "/v1/completions", account=f"t{number}", usage=lambda usage=usage: usage)
        metrics.count(exchange, "")
    lines = generate_latest(metrics.registry).decode().splitlines()
    tenants = [line for line in lines if line.startswith("spectra:tenant_requests_total")]
    assert len(tenants) == MOST_TENANTS + 1
    assert f'spectra:tenant_requests_total{{tenant="{OTHER}"}} 50.0' in tenants
