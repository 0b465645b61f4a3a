"""Prometheus metrics of the router: steps and requests of its lanes under vLLM's names, and those of pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from deployments.metrics.families import (
    ENGINE,
    MODEL,
    OURS,
    REQUEST_S,
    VLLM,
    AliasCollector,
    Families,
    read_family,
)
from deployments.metrics.requests import EngineMetrics, RequestFamilies
from deployments.pipeline.stage_reports import LoadReport
from deployments.router.lane import Lane
from engine.step import Step, StepResult
from engine.target_model.info import TargetInfo

ALL_STAGES = "all"  # label in place of the numbers of stage and rank: phases that all stages wait for

# Families that are read at a scrape: name -> help text, and how to read a series' value.
ENGINE_GAUGES: dict[str, tuple[str, Callable[[Lane], float]]] = {
    "num_requests_running": ("Sequences that own KV blocks.", lambda lane: lane.scheduler.n_running),
    "num_requests_waiting": ("Sequences in the queue.", lambda lane: lane.n_waiting),
    "kv_cache_usage_perc": (
        "Share of KV blocks in use, 0 to 1.",
        lambda lane: 1 - lane.scheduler.blocks.n_free / lane.scheduler.blocks.n_blocks,
    ),
}
LANE_GAUGES: dict[str, tuple[str, Callable[[Lane], float]]] = {
    "kv_sequences_scattered": (
        "Sequences whose KV blocks are no contiguous run.",
        lambda lane: lane.scheduler.blocks.n_scattered,
    ),
    "kv_longest_free_run_perc": (
        "Share of KV blocks in the longest run of free ones, 0 to 1.",
        lambda lane: lane.scheduler.blocks.longest_free_run / lane.scheduler.blocks.n_blocks,
    ),
}
ROUTER_GAUGES: dict[str, tuple[str, Callable[[Lane], int]]] = {  # sums over all lanes
    "steps_in_flight": ("Steps sent and not answered.", lambda lane: lane.n_in_flight),
    "pipelines_up": ("Pipelines that are connected.", lambda lane: lane.is_up),
    "pipelines_wanted": ("Pipelines that should be connected.", lambda lane: lane.is_enabled),
    "pipelines_pending": (
        "Pipelines that should be connected and are not.",
        lambda lane: lane.is_enabled and not lane.is_up,
    ),
}


class RouterMetrics(Collector):
    """Counters that the router updates, and families that are read from its lanes at every scrape.

    Args:
        model: label.
        info: of the target.
        lanes: all of them.
        prefix_cache: whether prefixes are cached.
        others: further collectors to expose.
    """

    def __init__(
        self, model: str, info: TargetInfo, lanes: Sequence[Lane], prefix_cache: bool, others: Iterable[Collector] = ()
    ) -> None:
        self._model = model
        self._lanes = lanes
        self._cache_config = {
            "block_size": str(info.block_size),
            "num_gpu_blocks": str(info.n_blocks),
            "enable_prefix_caching": str(prefix_cache),
        }
        self._n_overdue = 0
        self._busy_seconds: dict[tuple[str, int], float] = {}  # by lane and stage
        self._loads: dict[str, LoadReport] = {}  # lane -> the start of its newest pipeline
        self._registry = CollectorRegistry()
        requests = RequestFamilies(self._registry, info.max_model_len)
        self.engines = {lane.target.name: EngineMetrics(requests, model, n) for n, lane in enumerate(lanes)}
        families = Families(self._registry, MODEL)
        self.recovery_seconds = families.histogram(
            f"{OURS}:recovery_seconds", "From the loss of a pipeline to the first result of the next one.", REQUEST_S
        ).labels(model)
        self.prefilled_again = families.counter(
            f"{OURS}:sequences_prefilled_again", "Running sequences that are prefilled again: their pipeline was lost."
        ).labels(model)
        self.moved = families.counter(f"{OURS}:sequences_moved", "Sequences that moved to another lane.").labels(model)
        self.refused = families.counter(
            f"{OURS}:requests_refused",
            "Requests answered with 429 because of the queue; spectra:http_refusals counts all.",
        ).labels(model)
        between = requests.histograms["inter_token_latency_seconds"]
        for collector in (self, AliasCollector(f"{VLLM}:time_per_output_token_seconds", between), *others):
            self._registry.register(collector)

    def count_step(self, lane: str, step: Step, result: StepResult, n_generated: int) -> None:
        """Count a target step that generated ``n_generated`` tokens."""
        self.engines[lane].count_step(step, result, n_generated)
        for stage, seconds in enumerate(result.stage_seconds):
            self._busy_seconds[lane, stage] = self._busy_seconds.get((lane, stage), 0.0) + seconds

    def render(self, n_overdue: int = 0) -> str:
        """Prometheus exposition text; ``n_overdue`` pipelines have been missing for longer than the timeout."""
        self._n_overdue = n_overdue
        for engine in self.engines.values():
            engine.flush()
        return generate_latest(self._registry).decode()

    def collect(self) -> Iterator[Metric]:
        model, lanes = self._model, self._lanes
        for name, (text, read) in ENGINE_GAUGES.items():
            series = [((model, str(n)), read(lane)) for n, lane in enumerate(lanes)]
            yield read_family("gauge", f"{VLLM}:{name}", text, (MODEL, ENGINE), series)
        config = [((model, str(n), *self._cache_config.values()), 1.0) for n in range(len(lanes))]
        labels = (MODEL, ENGINE, *self._cache_config)
        yield read_family("gauge", f"{VLLM}:cache_config_info", "KV cache of a lane; always 1.", labels, config)
        for name, (text, count) in ROUTER_GAUGES.items():
            yield read_family("gauge", f"{OURS}:{name}", text, (MODEL,), [((model,), sum(map(count, lanes)))])
        text = "Pipelines that should be connected and have not been for more than 900 seconds."
        yield read_family("gauge", f"{OURS}:pipelines_overdue", text, (MODEL,), [((model,), self._n_overdue)])
        lost = [((model,), sum(lane.n_lost for lane in lanes))]
        yield read_family("counter", f"{OURS}:pipelines_lost", "Pipelines that broke or hung.", (MODEL,), lost)
        yield from self._collect_lanes()
        yield from self._collect_loads()

    def _collect_lanes(self) -> Iterator[Metric]:
        model, lanes = self._model, [(lane.target.name, lane) for lane in self._lanes]
        for name, (text, read) in LANE_GAUGES.items():
            series = [((model, lane_name), read(lane)) for lane_name, lane in lanes]
            yield read_family("gauge", f"{OURS}:{name}", text, (MODEL, "lane"), series)
        moved = [((model, name), lane.scheduler.blocks.n_moved) for name, lane in lanes]
        text = "KV blocks copied so that a sequence's are a contiguous run."
        yield read_family("counter", f"{OURS}:kv_blocks_moved", text, (MODEL, "lane"), moved)
        decisions = [
            ((model, name, decision.tier, decision.reason), float(n))
            for name, lane in lanes
            for decision, n in lane.scheduler.decisions.items()
        ]
        text = "Steps of a sequence, by auto's decision about them."
        yield read_family("counter", f"{OURS}:auto_steps", text, (MODEL, "lane", "tier", "reason"), decisions)
        busy = [((model, name, str(stage)), seconds) for (name, stage), seconds in self._busy_seconds.items()]
        text = "Time a stage spent on steps."
        yield read_family("counter", f"{OURS}:stage_busy_seconds", text, (MODEL, "lane", "stage"), busy)

    def _collect_loads(self) -> Iterator[Metric]:
        for lane in self._lanes:
            if lane.is_up:
                self._loads[lane.target.name] = lane.load_report
        seconds, n_bytes = [], []
        for lane_name, load in self._loads.items():
            key = self._model, lane_name
            seconds += [((*key, ALL_STAGES, ALL_STAGES, phase), value) for phase, value in load.seconds.items()]
            for number, own in enumerate(load.processes):
                stage, rank = divmod(number, load.n_ranks)
                process = *key, str(stage), str(rank)
                seconds += [((*process, phase), value) for phase, value in own.seconds.items()]
                n_bytes.append((process, float(own.n_read)))
        labels = MODEL, "lane", "stage", "rank"
        text = "Phases of the newest start of a stage's rank, or of all stages together."
        yield read_family("gauge", f"{OURS}:load_seconds", text, (*labels, "phase"), seconds)
        text = "Bytes of weights that the newest process of a stage's rank read."
        yield read_family("gauge", f"{OURS}:load_bytes", text, labels, n_bytes)
