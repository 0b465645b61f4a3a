"""What operators look at: the service as its clients see it, and its tenants."""

from __future__ import annotations

from tools.monitoring.expressions import MODEL, V1, WINDOW, gauge, mean, quantiles, rate, ratio
from tools.monitoring.grafana import Board, Panel, Query

PHASES = {phase: f"vllm:request_{phase}_time_seconds" for phase in ("queue", "prefill", "decode")}
MOST = 20  # tenants in a panel

TRAFFIC = (
    Panel(
        "Requests by status",
        "reqps",
        (Query(rate("spectra:http_requests_total", "code", V1), "{{code}}"),),
        "Of /v1, all models. 499: the client had gone.",
        stacked=True,
    ),
    Panel(
        "Tokens",
        "short",
        (
            Query(rate("vllm:generation_tokens_total"), "generated"),
            Query(rate("vllm:prompt_tokens_total"), "of prompts"),
            Query(rate("vllm:prefix_cache_hits_total"), "of prompts, found in the cache"),
        ),
        "Per second.",
    ),
    Panel(
        "Ends of requests",
        "reqps",
        (Query(rate("vllm:request_success_total", "finished_reason"), "{{finished_reason}}"),),
        "abort: cancelled, or failed.",
        stacked=True,
    ),
)

LATENCY = (
    Panel("Time to first token", "s", quantiles("vllm:time_to_first_token_seconds")),
    Panel("Time per output token", "s", quantiles("vllm:request_time_per_output_token_seconds"), "Of whole requests."),
    Panel("End to end", "s", quantiles("vllm:e2e_request_latency_seconds")),
    Panel(
        "Where the time goes",
        "s",
        tuple(Query(mean(name), phase) for phase, name in PHASES.items()),
        "Mean of a request.",
        stacked=True,
    ),
    Panel(
        "Between two steps of a sequence, per token",
        "s",
        quantiles("vllm:inter_token_latency_seconds"),
        "What a client that streams sees as pauses.",
    ),
)

LOAD = (
    Panel(
        "Requests in the server",
        "short",
        (
            Query(gauge("vllm:num_requests_running"), "running {{model_name}}"),
            Query(gauge("vllm:num_requests_waiting"), "waiting {{model_name}}"),
        ),
    ),
    Panel(
        "KV cache in use",
        "percentunit",
        (Query(f"vllm:kv_cache_usage_perc{{{MODEL}}}", "{{model_name}} {{engine}}"),),
        "By lane. What it only keeps of earlier texts counts as free.",
    ),
    Panel(
        "Refused",
        "reqps",
        (
            Query(rate("spectra:requests_refused_total"), "429: the queue"),
            Query(rate("spectra:http_refusals_total", "status, code", ""), "{{status}} {{code}}"),
        ),
        "429 has two causes: the queue of all (overloaded), and the rates of a key (rate_limit_exceeded).",
    ),
)

REQUESTS = (
    Panel("Tokens of a prompt", "short", quantiles("vllm:request_prompt_tokens")),
    Panel("Tokens of an answer", "short", quantiles("vllm:request_generation_tokens")),
    Panel(
        "Prompts found in the cache",
        "percentunit",
        (
            Query(
                ratio(
                    rate("vllm:prefix_cache_hits_total", "engine"), rate("vllm:prefix_cache_queries_total", "engine")
                ),
                "lane {{engine}}",
            ),
        ),
        "Share of their tokens.",
    ),
)

PROCESSES = (
    Panel(
        "Memory",
        "bytes",
        (Query("spectra:process_resident_memory_bytes", "{{process}} {{pid}} {{node}}"),),
        "Of the router and of every ingress.",
    ),
    Panel(
        "Processor time",
        "percentunit",
        (Query(f"rate(spectra:process_cpu_seconds[{WINDOW}])", "{{process}} {{pid}} {{node}}"),),
        "Of one core.",
    ),
    Panel(
        "Certificates are valid for",
        "s",
        (Query(f"spectra:certificate_expiration_timestamp_seconds{{{MODEL}}} - time()", "{{certificate}}"),),
    ),
)

SERVICE = Board(
    "service",
    "Service",
    {"Traffic": TRAFFIC, "Latency": LATENCY, "Load": LOAD, "Requests": REQUESTS, "Processes": PROCESSES},
)


def _by_tenant(title: str, unit: str, name: str) -> Panel:
    most = f"topk({MOST}, {rate(name, 'tenant', '')})"
    return Panel(title, unit, (Query(most, "{{tenant}}"),), f"Of all models, the {MOST} largest.", stacked=True)


TENANTS = Board(
    "tenants",
    "Tenants",
    {
        "Use": (
            _by_tenant("Requests", "reqps", "spectra:tenant_requests_total"),
            _by_tenant("Tokens of prompts per second", "short", "spectra:tenant_prompt_tokens_total"),
            _by_tenant("Generated tokens per second", "short", "spectra:tenant_generation_tokens_total"),
        ),
        "Edge": (
            Panel(
                "Answers by route",
                "reqps",
                (Query(rate("spectra:http_requests_total", "route, code", ""), "{{route}} {{code}}"),),
            ),
            Panel(
                "Errors told to clients",
                "reqps",
                (
                    Query(
                        rate("spectra:http_refusals_total", "status, code, field", ""), "{{status}} {{code}} {{field}}"
                    ),
                ),
                "401 and 403: keys. 429: rates, or the queue.",
            ),
            Panel("Bodies of requests", "bytes", quantiles("spectra:http_request_size_bytes", V1)),
        ),
    },
)
