"""Prometheus metrics of the router, under vLLM's names, so that existing dashboards read them."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from deployments.router.lane import Lane
from engine.events import ABORT, SourceCounts, StepEvent
from engine.step import StepResult

VLLM, OURS = "vllm", "spectra"  # first part of a name
_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds

disable_created_metrics()  # type: ignore[no-untyped-call]  # vLLM has no ``_created`` series either


class RouterMetrics:
    """Counters that the router feeds, and gauges that are read from its lanes at every scrape.

    Args:
        model: name in the labels.
    """

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        counter, histogram, gauge = self._counter, self._histogram, self._gauge
        self._prompt = counter("prompt_tokens", "Prompt tokens processed.")
        self._queries = counter("prefix_cache_queries", "Prompt tokens of finished requests.")
        self._hits = counter("prefix_cache_hits", "Of these, tokens whose rows were in the cache already.")
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
        self._add_pipelines()

    def _add_pipelines(self) -> None:
        """Metrics that vLLM has no name for: pipelines, their stages, their losses."""
        self._stage_busy = Counter(
            "spectra:stage_busy_seconds",
            "Time a stage spent on steps.",
            ["model_name", "lane", "stage"],
            registry=self._registry,
        )
        self._busy: dict[tuple[str, int], Counter] = {}
        self._in_flight = self._gauge("steps_in_flight", "Steps sent and not answered.", OURS)
        self._up = self._gauge("pipelines_up", "Pipelines that are connected.", OURS)
        self._lost = self._counter("pipelines_lost", "Pipelines that broke or hung.", OURS)
        self._recovery = self._histogram(
            "recovery_seconds", "From the loss of a pipeline to the first answer of the next one.", OURS
        )
        self._again = self._counter(
            "sequences_prefilled_again", "Running sequences whose pipeline was lost: they are prefilled again.", OURS
        )
        self._moved = self._counter("sequences_moved", "Sequences that another lane took over.", OURS)
        self._refused = self._counter("requests_refused", "Requests answered with 429.", OURS)

    def _counter(self, name: str, text: str, kind: str = VLLM) -> Counter:
        made: Counter = Counter(f"{kind}:{name}", text, ["model_name"], registry=self._registry).labels(self._model)
        return made

    def _histogram(self, name: str, text: str, kind: str = VLLM) -> Histogram:
        family = Histogram(f"{kind}:{name}", text, ["model_name"], buckets=_LATENCY, registry=self._registry)
        made: Histogram = family.labels(self._model)
        return made

    def _gauge(self, name: str, text: str, kind: str = VLLM) -> Gauge:
        made: Gauge = Gauge(f"{kind}:{name}", text, ["model_name"], registry=self._registry).labels(self._model)
        return made

    def count_step(self, lane: str, result: StepResult) -> None:
        """Count a target step."""
        self._step_seconds.observe(result.seconds)
        for stage, seconds in enumerate(result.stage_seconds):
            self._busy_of(lane, stage).inc(seconds)

    def _busy_of(self, lane: str, stage: int) -> Counter:
        """The stage's counter, cached: looking up labels takes longer than counting."""
        if (lane, stage) not in self._busy:
            self._busy[lane, stage] = self._stage_busy.labels(self._model, lane, str(stage))
        return self._busy[lane, stage]

    def count_loss(self, n_running: int) -> None:
        """Count a pipeline that was lost with ``n_running`` sequences in its cache."""
        self._lost.inc()
        self._again.inc(n_running)

    def count_recovery(self, seconds: float) -> None:
        """Count the seconds from a pipeline's loss to the first result of the next one."""
        self._recovery.observe(seconds)

    def count_moved(self) -> None:
        """Count a sequence that moved to another lane."""
        self._moved.inc()

    def count_refusal(self) -> None:
        """Count a request that admission refused."""
        self._refused.inc()

    def count_event(self, event: StepEvent, since_last: float, prompted: int = 0) -> None:
        """Count an event of one sequence.

        Args:
            event: of the sequence.
            since_last: seconds since its last event, or since its submission.
            prompted: tokens of the prompt, for the first event of a sequence; 0 for all others.
        """
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
                self._queries.inc(event.stats.prompt_tokens)
                self._hits.inc(event.stats.cached_tokens)

    def count_abort(self) -> None:
        """Count a request that was cancelled, or failed."""
        self._done.labels(self._model, ABORT).inc()

    def _count_drafts(self, drafts: dict[str, SourceCounts]) -> None:
        self._drafts.inc()
        for source, counts in drafts.items():
            self._draft_tokens.inc(counts.drafted)
            self._accepted.inc(counts.accepted)
            for name, count in counts.named.items():
                self._by_source.labels(self._model, source, name).inc(count)

    def render(self, lanes: Sequence[Lane]) -> str:
        """Prometheus exposition text."""
        schedulers = [lane.scheduler for lane in lanes]
        n_free = sum(scheduler.blocks.n_free for scheduler in schedulers)
        self._running.set(sum(scheduler.n_running for scheduler in schedulers))
        self._waiting.set(sum(lane.n_waiting for lane in lanes))
        self._kv_usage.set(1 - n_free / sum(scheduler.blocks.n_blocks for scheduler in schedulers))
        self._in_flight.set(sum(lane.n_in_flight for lane in lanes))
        self._up.set(sum(lane.is_up for lane in lanes))
        return generate_latest(self._registry).decode()
