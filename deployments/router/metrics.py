"""Prometheus metrics of the router: those of its lanes under vLLM's names, so that existing dashboards read them, and
those of pipelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Counter as Metric
from prometheus_client.registry import Collector

from deployments.metrics.families import MODEL, OURS, REQUEST_S, VLLM, Alias, Families
from deployments.metrics.requests import EngineMetrics, RequestFamilies
from deployments.pipeline.stage_reports import LoadReport
from deployments.router.lane import Lane
from engine.kv.blocks import BlockAllocator
from engine.protocol import Decision
from engine.step import Step, StepResult
from engine.target_model.info import TargetInfo

ALL = "all"  # in place of a stage's number: phases that all stages wait for


class RouterMetrics:
    """Counters that the router feeds, and gauges that are read from its lanes at every scrape.

    Args:
        model: name in the labels.
        info: of the target.
        lanes: their names.
        prefix_cache: whether beginnings of texts are kept.
        others: metrics of other origin to show as well.
    """

    def __init__(
        self,
        model: str,
        info: TargetInfo,
        lanes: Sequence[str],
        prefix_cache: bool,
        others: Iterable[Collector] = (),
    ) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        requests = RequestFamilies(self._registry, info.max_model_len)
        self._registry.register(Alias(f"{VLLM}:time_per_output_token_seconds", requests.between))
        self.engines = {lane: EngineMetrics(requests, model, number) for number, lane in enumerate(lanes)}
        self._running = requests.gauge(f"{VLLM}:num_requests_running", "Sequences that own KV blocks.")
        self._waiting = requests.gauge(f"{VLLM}:num_requests_waiting", "Sequences in the queue.")
        self._kv_usage = requests.gauge(f"{VLLM}:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.")
        sizes = {"block_size": info.block_size, "num_gpu_blocks": info.n_blocks, "enable_prefix_caching": prefix_cache}
        config = requests.gauge(f"{VLLM}:cache_config_info", "Of the KV cache of one lane; always 1.", *sizes)
        for number in range(len(lanes)):
            config.labels(model, str(number), *map(str, sizes.values())).set(1)
        self._add_pipelines()
        for other in others:
            self._registry.register(other)

    def _add_pipelines(self) -> None:
        """Metrics that vLLM has no name for: pipelines, their stages, their losses."""
        families, model = Families(self._registry, MODEL), self._model

        def counter(name: str, text: str) -> Metric:
            made: Metric = families.counter(f"{OURS}:{name}", text).labels(model)
            return made

        self._stage_busy = families.counter(
            f"{OURS}:stage_busy_seconds", "Time a stage spent on steps.", "lane", "stage"
        )
        self._busy: dict[tuple[str, int], Metric] = {}
        self._load_seconds = families.gauge(
            f"{OURS}:load_seconds", "Of the newest start of a stage, or of all together.", "lane", "stage", "phase"
        )
        self._load_bytes = families.gauge(
            f"{OURS}:load_bytes", "Weights that the newest process of a stage read.", "lane", "stage"
        )
        self._scattered = families.gauge(
            f"{OURS}:kv_sequences_scattered", "Sequences whose KV blocks are no contiguous run.", "lane"
        )
        self._longest = families.gauge(
            f"{OURS}:kv_longest_free_run_perc", "Share of KV blocks in the longest run of free ones, 0 to 1.", "lane"
        )
        self._blocks_moved = families.counter(
            f"{OURS}:kv_blocks_moved", "KV blocks copied so that a sequence's are a contiguous run.", "lane"
        )
        self._moved_until: dict[str, int] = {}  # lane -> blocks that have been counted
        self._auto_steps = families.counter(
            f"{OURS}:auto_steps", "Steps of a sequence by what auto decided about them.", "lane", "tier", "reason"
        )
        self._auto_until: dict[str, Counter[Decision]] = {}  # lane -> decisions that have been counted
        self._in_flight = families.gauge(f"{OURS}:steps_in_flight", "Steps sent and not answered.").labels(model)
        self._up = families.gauge(f"{OURS}:pipelines_up", "Pipelines that are connected.").labels(model)
        self._wanted = families.gauge(f"{OURS}:pipelines_wanted", "Pipelines that there should be.").labels(model)
        self._pending = families.gauge(f"{OURS}:pipelines_pending", "Of these, not connected.").labels(model)
        self._overdue = families.gauge(
            f"{OURS}:pipelines_overdue", "Of these, not connected for longer than scale_timeout."
        ).labels(model)
        self._lost = counter("pipelines_lost", "Pipelines that broke or hung.")
        self._recovery = families.histogram(
            f"{OURS}:recovery_seconds", "From the loss of a pipeline to the first answer of the next one.", REQUEST_S
        ).labels(model)
        self._again = counter(
            "sequences_prefilled_again", "Running sequences whose pipeline was lost: they are prefilled again."
        )
        self._moved = counter("sequences_moved", "Sequences that another lane took over.")
        self._refused = counter("requests_refused", "Requests answered with 429 because of the queue.")

    def count_step(self, lane: str, step: Step, result: StepResult, n_generated: int) -> None:
        """Count a target step, which has generated ``n_generated`` tokens."""
        self.engines[lane].count_step(step, result, n_generated)
        for stage, seconds in enumerate(result.stage_seconds):
            self._busy_of(lane, stage).inc(seconds)

    def _busy_of(self, lane: str, stage: int) -> Metric:
        """The stage's counter, cached: looking up labels takes longer than counting."""
        if (lane, stage) not in self._busy:
            self._busy[lane, stage] = self._stage_busy.labels(self._model, lane, str(stage))
        return self._busy[lane, stage]

    def _show_fragmentation(self, lane: str, blocks: BlockAllocator) -> None:
        self._scattered.labels(self._model, lane).set(blocks.n_scattered)
        self._longest.labels(self._model, lane).set(blocks.longest_free_run / blocks.n_blocks)
        moved = blocks.n_moved - self._moved_until.get(lane, 0)
        self._blocks_moved.labels(self._model, lane).inc(moved)
        self._moved_until[lane] = blocks.n_moved

    def _show_load(self, lane: str, load: LoadReport) -> None:
        for phase, seconds in load.seconds.items():
            self._load_seconds.labels(self._model, lane, ALL, phase).set(seconds)
        for stage, own in enumerate(load.stages):
            self._load_bytes.labels(self._model, lane, str(stage)).set(own.n_read)
            for phase, seconds in own.seconds.items():
                self._load_seconds.labels(self._model, lane, str(stage), phase).set(seconds)

    def _count_decisions(self, lane: str, decisions: Counter[Decision]) -> None:
        before = self._auto_until.get(lane, Counter())
        for decision, n in decisions.items():
            self._auto_steps.labels(self._model, lane, decision.tier, decision.reason).inc(n - before[decision])
        self._auto_until[lane] = Counter(decisions)

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

    def render(self, lanes: Sequence[Lane], n_overdue: int = 0) -> str:
        """Prometheus exposition text; ``n_overdue`` pipelines have been missing for too long."""
        for number, lane in enumerate(lanes):
            labels, blocks = (self._model, str(number)), lane.scheduler.blocks
            self.engines[lane.target.name].flush()
            self._running.labels(*labels).set(lane.scheduler.n_running)
            self._waiting.labels(*labels).set(lane.n_waiting)
            self._kv_usage.labels(*labels).set(1 - blocks.n_free / blocks.n_blocks)
            self._show_fragmentation(lane.target.name, blocks)
            self._count_decisions(lane.target.name, lane.scheduler.decisions)
            self._show_load(lane.target.name, lane.load_report)
        self._in_flight.set(sum(lane.n_in_flight for lane in lanes))
        self._up.set(sum(lane.is_up for lane in lanes))
        self._wanted.set(sum(lane.is_wanted for lane in lanes))
        self._pending.set(sum(lane.is_wanted and not lane.is_up for lane in lanes))
        self._overdue.set(n_overdue)
        return generate_latest(self._registry).decode()
