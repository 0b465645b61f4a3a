"""The metrics of one ingress, which the router sums over all ingresses.

Every label has few values, whatever clients send: routes are templates, fields are those of the schemas, and tenants
beyond ``MOST_TENANTS`` share one series.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from app.telemetry.exchange import OTHER, Exchange
from deployments.metrics.families import CHOICES, MODEL, OURS, VLLM, Families, token_buckets

ANONYMOUS = "anonymous"
MOST_TENANTS = 1000
CLIENT_CLOSED = 499  # a status for metrics and logs only
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CALL"})
BODY_BYTES = [float(4**exponent) for exponent in range(4, 13)]  # 256 bytes to 16 MiB


class EdgeMetrics:
    """The metrics of one ingress."""

    def __init__(self, registry: CollectorRegistry, model: str, max_model_len: int) -> None:
        self.registry = registry
        ours, vllm = Families(registry), Families(registry, MODEL)
        self._requests = ours.counter(f"{OURS}:http_requests", "Answers.", "route", "method", "code")
        self._refusals = ours.counter(f"{OURS}:http_refusals", "Errors returned to clients.", "status", "code", "field")
        self._sizes = ours.histogram(f"{OURS}:http_request_size_bytes", "Bodies of requests.", BODY_BYTES, "route")
        self._usage = {
            key: ours.counter(f"{OURS}:tenant_{key}", text, "tenant")
            for key, text in {
                "requests": "Requests that were answered with tokens.",
                "prompt_tokens": "Tokens of their prompts, once for all choices.",
                "generation_tokens": "Tokens generated for them, also if the client left before the end.",
            }.items()
        }
        self._tenants: set[str] = set()
        buckets = token_buckets(max_model_len)
        self._choices = vllm.histogram(f"{VLLM}:request_params_n", "Choices asked for.", CHOICES).labels(model)
        self._longest = vllm.histogram(
            f"{VLLM}:request_max_num_generation_tokens", "Tokens of the longest choice of a request.", buckets
        ).labels(model)

    def count(self, exchange: Exchange, field: str) -> None:
        """Count one request at its end; ``field`` is the refused one: a schema's, ``other`` or ""."""
        route, refusal = exchange.route or exchange.path, exchange.refusal
        method = exchange.method if exchange.method in METHODS else OTHER
        self._requests.labels(route, method, str(_status(exchange))).inc()
        self._sizes.labels(route).observe(exchange.n_bytes)
        if refusal is not None:
            self._refusals.labels(str(refusal.status), refusal.code, field).inc()
        usage = None if exchange.usage is None else exchange.usage()
        if usage is None or not usage.generation_tokens:
            return
        tenant = self._known(exchange.account)
        amounts = {"requests": 1, "prompt_tokens": usage.prompt_tokens, "generation_tokens": usage.generation_tokens}
        for key, amount in amounts.items():
            self._usage[key].labels(tenant).inc(amount)
        self._choices.observe(usage.n)
        self._longest.observe(usage.longest)

    def _known(self, tenant: str) -> str:
        name = tenant or ANONYMOUS
        if name not in self._tenants:
            if len(self._tenants) >= MOST_TENANTS:
                return OTHER
            self._tenants.add(name)
        return name


def _status(exchange: Exchange) -> int:
    """The HTTP status; for a call of a Ray handle, the one that HTTP would have returned."""
    ended = CLIENT_CLOSED if exchange.is_client_gone else 200
    return exchange.status or (ended if exchange.refusal is None else exchange.refusal.status)
