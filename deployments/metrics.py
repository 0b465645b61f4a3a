"""Prometheus metrics of the router, under vLLM's names, so that existing dashboards read them."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from engine.events import ABORT, SourceCounts, StepEvent
from engine.scheduler import Scheduler

_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds

disable_created_metrics()  # type: ignore[no-untyped-call]  # vLLM has no ``_created`` series either


class RouterMetrics:
    """Counters that the router feeds and gauges read off the scheduler when scraped."""

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        counter, histogram, gauge = self._counter, self._histogram, self._gauge
        self._prompt = counter("prompt_tokens", "Prompt tokens processed.")
        self._generated = counter("generation_tokens", "Tokens generated.")
        self._preemptions = counter("num_preemptions", "Sequences that lost their KV blocks and were prefilled again.")
        self._done = Counter(
            "vllm:request_success", "Finished requests.", ["model_name", "finished_reason"], registry=self._registry
        )
        self._drafts = counter("spec_decode_num_drafts", "Target steps that had a draft.")
        self._draft_tokens = counter("spec_decode_num_draft_tokens", "Drafted tokens scored by the target.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Drafted tokens accepted.")
        self._by_source = Counter(
            "spectra:spec_decode_source_tokens",
            "Drafted and accepted tokens by speculator.",
            ["model_name", "source", "kind"],
            registry=self._registry,
        )
        self._ttft = histogram("time_to_first_token_seconds", "From submission to the first token.")
        self._between = histogram("inter_token_latency_seconds", "Between two steps of a sequence, per token.")
        self._end_to_end = histogram("e2e_request_latency_seconds", "From submission to the last token.")
        self._step_seconds = histogram("iteration_seconds", "Time of one target step.")
        self._running = gauge("num_requests_running", "Sequences that own KV blocks.")
        self._waiting = gauge("num_requests_waiting", "Sequences in the queue.")
        self._kv_usage = gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.")

    def _counter(self, name: str, text: str) -> Counter:
        made: Counter = Counter(f"vllm:{name}", text, ["model_name"], registry=self._registry).labels(self._model)
        return made

    def _histogram(self, name: str, text: str) -> Histogram:
        family = Histogram(f"vllm:{name}", text, ["model_name"], buckets=_LATENCY, registry=self._registry)
        made: Histogram = family.labels(self._model)
        return made

    def _gauge(self, name: str, text: str) -> Gauge:
        made: Gauge = Gauge(f"vllm:{name}", text, ["model_name"], registry=self._registry).labels(self._model)
        return made

    def count_step(self, seconds: float) -> None:
        """One target step took so long."""
        self._step_seconds.observe(seconds)

    def count_event(self, event: StepEvent, since_last: float, prompted: int = 0) -> None:
        """Tokens of one sequence; ``since_last`` in seconds, since its last event or its submission; ``prompted`` are
        the prompt's tokens, on a sequence's first event."""
        self._generated.inc(len(event.token_ids))
        if prompted:
            self._prompt.inc(prompted)
            self._ttft.observe(since_last)
        else:
            self._between.observe(since_last / len(event.token_ids))
        if event.drafts:
            self._count_drafts(event.drafts)
        if event.finish_reason is not None:
            self._done.labels(self._model, event.finish_reason).inc()
            if event.stats is not None:
                self._end_to_end.observe(event.stats.seconds)
                self._preemptions.inc(event.stats.preemptions)

    def count_abort(self) -> None:
        """A request was cancelled, or failed."""
        self._done.labels(self._model, ABORT).inc()

    def _count_drafts(self, drafts: dict[str, SourceCounts]) -> None:
        self._drafts.inc()
        for source, counts in drafts.items():
            self._draft_tokens.inc(counts.drafted)
            self._accepted.inc(counts.accepted)
            for name, count in counts.named.items():
                self._by_source.labels(self._model, source, name).inc(count)

    def render(self, scheduler: Scheduler) -> str:
        """Prometheus exposition text."""
        self._running.set(scheduler.n_running)
        self._waiting.set(scheduler.n_waiting)
        self._kv_usage.set(1 - scheduler.blocks.n_free / scheduler.blocks.n_blocks)
        return generate_latest(self._registry).decode()
