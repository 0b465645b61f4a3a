"""vLLM's metrics of steps and of finished requests; a lane is what vLLM calls an engine.

Drafts are counted for every step of a sequence as plain numbers, which become metrics at the next scrape. A request's
times and lengths are observed once, at its end.
"""

from __future__ import annotations

from collections import Counter as Tally

from prometheus_client import CollectorRegistry

from deployments.metrics.families import (
    ENGINE,
    FIRST_TOKEN_S,
    MODEL,
    OURS,
    REQUEST_S,
    STEP_TOKENS,
    TOKEN_S,
    VLLM,
    Families,
    token_buckets,
)
from engine.events import ABORT, LENGTH, STOP, RequestStats, SourceCounts, StepEvent
from engine.scheduling.sequence import Sequence
from engine.step import Step, StepResult

COUNTERS = {
    "prompt_tokens": "Prompt tokens processed.",
    "generation_tokens": "Tokens generated.",
    "prefix_cache_queries": "Prompt tokens of finished requests.",
    "prefix_cache_hits": "Prompt tokens of finished requests that were in the prefix cache.",
    "num_preemptions": "Sequences that lost their KV blocks and were prefilled again.",
    "spec_decode_num_drafts": "Target steps of a sequence that had a draft.",
    "spec_decode_num_draft_tokens": "Drafted tokens scored by the target.",
    "spec_decode_num_accepted_tokens": "Drafted tokens accepted.",
}
HISTOGRAMS = {  # of seconds and of a step's tokens
    "e2e_request_latency_seconds": ("From submission to the last token.", REQUEST_S),
    "request_queue_time_seconds": ("From submission until the request first owned KV blocks.", REQUEST_S),
    "request_prefill_time_seconds": ("From the first KV blocks to the first token.", REQUEST_S),
    "request_decode_time_seconds": ("From the first token to the last.", REQUEST_S),
    "request_inference_time_seconds": ("Prefill and decode together.", REQUEST_S),
    "time_to_first_token_seconds": ("From submission to the first token.", FIRST_TOKEN_S),
    "inter_token_latency_seconds": ("Between two steps of a sequence, per token.", TOKEN_S),
    "request_time_per_output_token_seconds": ("Decode time of a request, per token after the first.", TOKEN_S),
    "iteration_seconds": ("Time of one target step.", TOKEN_S),
    "iteration_tokens_total": ("Tokens of a step: prompt tokens and generated ones.", STEP_TOKENS),
}
LENGTHS = {  # histograms of a request's tokens
    "request_prompt_tokens": "Tokens of the prompt.",
    "request_generation_tokens": "Tokens generated for a request.",
    "request_params_max_tokens": "The request's max_tokens.",
    "request_prefill_kv_computed_tokens": "Tokens of the prompt that were not in the prefix cache.",
}


class RequestFamilies:
    """vLLM's families of steps and finished requests, for all lanes."""

    def __init__(self, registry: CollectorRegistry, max_model_len: int) -> None:
        families = Families(registry, MODEL, ENGINE)
        self.counters = {name: families.counter(f"{VLLM}:{name}", text) for name, text in COUNTERS.items()}
        self.histograms = {
            name: families.histogram(f"{VLLM}:{name}", text, buckets) for name, (text, buckets) in HISTOGRAMS.items()
        }
        buckets = token_buckets(max_model_len)
        for name, text in LENGTHS.items():
            self.histograms[name] = families.histogram(f"{VLLM}:{name}", text, buckets)
        self.finished = families.counter(f"{VLLM}:request_success", "Finished requests.", "finished_reason")
        self.accepted_at = families.counter(
            f"{VLLM}:spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens accepted, by their depth in the draft: 0 is the first.",
            "position",
        )
        self.by_source = families.counter(
            f"{OURS}:spec_decode_source_tokens", "Drafted and accepted tokens by speculator.", "source", "kind"
        )


class EngineMetrics:
    """The series of one lane.

    Args:
        families: of all lanes.
        model: label.
        engine: number of the lane.
    """

    def __init__(self, families: RequestFamilies, model: str, engine: int) -> None:
        self._labels, self._families = (model, str(engine)), families
        self._counters = {name: family.labels(*self._labels) for name, family in families.counters.items()}
        self._histograms = {name: family.labels(*self._labels) for name, family in families.histograms.items()}
        self._finished = {reason: families.finished.labels(*self._labels, reason) for reason in (STOP, LENGTH, ABORT)}
        self._accepted: Tally[int] = Tally()  # by accepted tokens: steps with a draft since the last scrape
        self._sources: dict[str, SourceCounts] = {}  # since the last scrape

    def count_step(self, step: Step, result: StepResult, n_generated: int) -> None:
        """Count a target step that generated ``n_generated`` tokens."""
        self._histograms["iteration_seconds"].observe(result.seconds)
        n_read = sum(len(work.tokens) for work in step.work if work.tree is None)
        self._histograms["iteration_tokens_total"].observe(n_read + n_generated)
        self._counters["generation_tokens"].inc(n_generated)

    def count_event(self, event: StepEvent, since_last: float, n_prompt: int = 0) -> None:
        """Count an event of one sequence.

        Args:
            event: of the sequence.
            since_last: seconds since its last event, or since its submission.
            n_prompt: tokens of the prompt, for the first event of a sequence; 0 for all others.
        """
        if n_prompt:
            self._counters["prompt_tokens"].inc(n_prompt)
            self._histograms["time_to_first_token_seconds"].observe(since_last)
        else:
            self._histograms["inter_token_latency_seconds"].observe(since_last / len(event.token_ids))
        if event.drafts:
            self._count_drafts(event.drafts)

    def _count_drafts(self, drafts: dict[str, SourceCounts]) -> None:
        n_accepted = 0
        for source, counts in drafts.items():
            before = self._sources.get(source)
            self._sources[source] = counts if before is None else before.plus(counts)
            n_accepted += counts.accepted
        self._accepted[n_accepted] += 1

    def count_end(self, sequence: Sequence, finish_reason: str, stats: RequestStats) -> None:
        """Count a finished request."""
        self._finished[finish_reason].inc()
        self._counters["num_preemptions"].inc(stats.preemptions)
        self._counters["prefix_cache_queries"].inc(stats.prompt_tokens)
        self._counters["prefix_cache_hits"].inc(stats.cached_tokens)
        n_output, decode = sequence.n_output, stats.decode_seconds
        for name, value in (
            ("e2e_request_latency_seconds", stats.seconds),
            ("request_queue_time_seconds", stats.queue_seconds),
            ("request_prefill_time_seconds", stats.prefill_seconds),
            ("request_decode_time_seconds", decode),
            ("request_inference_time_seconds", stats.prefill_seconds + decode),
            ("request_time_per_output_token_seconds", decode / max(1, n_output - 1)),
            ("request_prompt_tokens", stats.prompt_tokens),
            ("request_generation_tokens", n_output),
            ("request_params_max_tokens", sequence.request.params.max_tokens),
            ("request_prefill_kv_computed_tokens", stats.prompt_tokens - stats.cached_tokens),
        ):
            self._histograms[name].observe(value)

    def count_abort(self) -> None:
        """Count a request that was cancelled or failed."""
        self._finished[ABORT].inc()

    def flush(self) -> None:
        """Add the drafts counted since the last scrape to the metrics."""
        sources, self._sources = self._sources, {}
        accepted, self._accepted = self._accepted, Tally()
        self._counters["spec_decode_num_drafts"].inc(accepted.total())
        self._counters["spec_decode_num_draft_tokens"].inc(sum(counts.drafted for counts in sources.values()))
        self._counters["spec_decode_num_accepted_tokens"].inc(sum(n * steps for n, steps in accepted.items()))
        for position in range(max(accepted, default=0)):
            steps = sum(steps for n, steps in accepted.items() if n > position)
            self._families.accepted_at.labels(*self._labels, str(position)).inc(steps)
        for source, counts in sources.items():
            for kind, number in counts.named.items():
                self._families.by_source.labels(*self._labels, source, kind).inc(number)
