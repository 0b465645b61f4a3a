"""vLLM's metrics of what an engine does and of the requests it has finished; a lane is what vLLM calls an engine.

What is counted at every step or every token of a sequence is a number here and becomes a metric when it is scraped;
what is known of a request at its end is observed then.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence

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
from engine.scheduling.sequence import Sequence as Running
from engine.step import Step, StepResult


class RequestFamilies:
    """vLLM's families of what engines do, and of the requests they have finished."""

    def __init__(self, registry: CollectorRegistry, max_model_len: int) -> None:
        families = Families(registry, MODEL, ENGINE)
        self.counter, self.gauge, self.histogram = families.counter, families.gauge, families.histogram
        self.prompt = self.counter(f"{VLLM}:prompt_tokens", "Prompt tokens processed.")
        self.generated = self.counter(f"{VLLM}:generation_tokens", "Tokens generated.")
        self.queries = self.counter(f"{VLLM}:prefix_cache_queries", "Prompt tokens of finished requests.")
        self.hits = self.counter(f"{VLLM}:prefix_cache_hits", "Of these, tokens whose rows were in the cache already.")
        self.preemptions = self.counter(
            f"{VLLM}:num_preemptions", "Sequences that lost their KV blocks and were prefilled again."
        )
        self.done = self.counter(f"{VLLM}:request_success", "Finished requests.", "finished_reason")
        self._add_speculation()
        self._add_times()
        self._add_tokens(token_buckets(max_model_len))

    def _add_speculation(self) -> None:
        self.drafts = self.counter(f"{VLLM}:spec_decode_num_drafts", "Target steps of a sequence that had a draft.")
        self.draft_tokens = self.counter(f"{VLLM}:spec_decode_num_draft_tokens", "Drafted tokens scored by the target.")
        self.accepted = self.counter(f"{VLLM}:spec_decode_num_accepted_tokens", "Drafted tokens accepted.")
        self.accepted_at = self.counter(
            f"{VLLM}:spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens accepted, by their depth in the draft: 0 is the first.",
            "position",
        )
        self.by_source = self.counter(
            f"{OURS}:spec_decode_source_tokens", "Drafted and accepted tokens by speculator.", "source", "kind"
        )

    def _add_times(self) -> None:
        times = {
            "e2e_request_latency_seconds": "From submission to the last token.",
            "request_queue_time_seconds": "From submission until the request first owned KV blocks.",
            "request_prefill_time_seconds": "From there to the first token.",
            "request_decode_time_seconds": "From the first token to the last.",
            "request_inference_time_seconds": "Prefill and decode together.",
        }
        self.times = [self.histogram(f"{VLLM}:{name}", text, REQUEST_S) for name, text in times.items()]
        self.first = self.histogram(
            f"{VLLM}:time_to_first_token_seconds", "From submission to the first token.", FIRST_TOKEN_S
        )
        self.between = self.histogram(
            f"{VLLM}:inter_token_latency_seconds", "Between two steps of a sequence, per token.", TOKEN_S
        )
        self.per_token = self.histogram(
            f"{VLLM}:request_time_per_output_token_seconds",
            "Decode time of a request, per token after the first.",
            TOKEN_S,
        )
        self.step_seconds = self.histogram(f"{VLLM}:iteration_seconds", "Time of one target step.", TOKEN_S)

    def _add_tokens(self, buckets: Sequence[float]) -> None:
        self.step_tokens = self.histogram(
            f"{VLLM}:iteration_tokens_total", "Tokens of a step: of prompts read, and generated.", STEP_TOKENS
        )
        tokens = {
            "request_prompt_tokens": "Tokens of the prompt.",
            "request_generation_tokens": "Tokens generated for a request.",
            "request_params_max_tokens": "Tokens that the request allowed.",
            "request_prefill_kv_computed_tokens": "Tokens of the prompt that were not found in the cache.",
        }
        self.tokens = [self.histogram(f"{VLLM}:{name}", text, buckets) for name, text in tokens.items()]


class EngineMetrics:
    """The series of one lane.

    Args:
        families: to add them to.
        model: name in the labels.
        engine: number of the lane.
    """

    def __init__(self, families: RequestFamilies, model: str, engine: int) -> None:
        labels = (model, str(engine))
        self._labels, self._families = labels, families
        self._prompt, self._generated = families.prompt.labels(*labels), families.generated.labels(*labels)
        self._first, self._between = families.first.labels(*labels), families.between.labels(*labels)
        self._step_seconds = families.step_seconds.labels(*labels)
        self._step_tokens = families.step_tokens.labels(*labels)
        self._done = {reason: families.done.labels(*labels, reason) for reason in (STOP, LENGTH, ABORT)}
        self._accepted: Tally[int] = Tally()  # by number of accepted tokens: steps with a draft, since the last scrape
        self._sources: dict[str, SourceCounts] = {}  # likewise
        self._drafts = [f.labels(*labels) for f in (families.drafts, families.draft_tokens, families.accepted)]
        self._times = [family.labels(*labels) for family in (*families.times, families.per_token)]
        self._tokens = [family.labels(*labels) for family in families.tokens]
        self._ends = [f.labels(*labels) for f in (families.preemptions, families.queries, families.hits)]

    def count_step(self, step: Step, result: StepResult, n_generated: int) -> None:
        """Count a target step, which has generated ``n_generated`` tokens."""
        self._step_seconds.observe(result.seconds)
        n_read = sum(len(work.tokens) for work in step.work if work.tree is None)
        self._step_tokens.observe(n_read + n_generated)
        self._generated.inc(n_generated)

    def count_event(self, event: StepEvent, since_last: float, prompted: int = 0) -> None:
        """Count an event of one sequence.

        Args:
            event: of the sequence.
            since_last: seconds since its last event, or since its submission.
            prompted: tokens of the prompt, for the first event of a sequence; 0 for all others.
        """
        if prompted:
            self._prompt.inc(prompted)
            self._first.observe(since_last)
        else:
            self._between.observe(since_last / len(event.token_ids))
        if event.drafts:
            self._count_drafts(event.drafts)

    def _count_drafts(self, drafts: dict[str, SourceCounts]) -> None:
        n_accepted = 0
        for source, counts in drafts.items():
            before = self._sources.get(source)
            self._sources[source] = counts if before is None else before.plus(counts)
            n_accepted += counts.accepted
        self._accepted[n_accepted] += 1

    def count_end(self, sequence: Running, finish_reason: str, stats: RequestStats) -> None:
        """Count a finished request."""
        self._done[finish_reason].inc()
        for counter, number in zip(
            self._ends, (stats.preemptions, stats.prompt_tokens, stats.cached_tokens), strict=True
        ):
            counter.inc(number)
        n_output, decode = sequence.n_output, stats.decode_seconds
        phases = (stats.queue_seconds, stats.prefill_seconds, decode, stats.prefill_seconds + decode)
        for histogram, seconds in zip(
            self._times, (stats.seconds, *phases, decode / max(1, n_output - 1)), strict=True
        ):
            histogram.observe(seconds)
        limit, computed = sequence.request.params.max_tokens, stats.prompt_tokens - stats.cached_tokens
        for histogram, number in zip(self._tokens, (stats.prompt_tokens, n_output, limit, computed), strict=True):
            histogram.observe(number)

    def count_abort(self) -> None:
        """Count a request that was cancelled, or failed."""
        self._done[ABORT].inc()

    def flush(self) -> None:
        """Add what was counted since the last scrape to the metrics."""
        sources, self._sources = self._sources, {}
        accepted, self._accepted = self._accepted, Tally()
        drafted = sum(counts.drafted for counts in sources.values())
        totals = (accepted.total(), drafted, sum(n * times for n, times in accepted.items()))
        for counter, number in zip(self._drafts, totals, strict=True):
            counter.inc(number)
        for position in range(max(accepted, default=0)):
            times = sum(times for n, times in accepted.items() if n > position)
            self._families.accepted_at.labels(*self._labels, str(position)).inc(times)
        for source, counts in sources.items():
            for kind, number in counts.named.items():
                self._families.by_source.labels(*self._labels, source, kind).inc(number)
