"""Metrics of stage replacements, as the owners of the pipelines report them: seconds by phase, number by process."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from deployments.metrics.families import MODEL, OURS, REQUEST_S, Families
from deployments.pipeline.endpoints import Endpoints

TOTAL = "total"  # all phases: from the moment the reason was known until the pipeline was whole


class ReplacementMetrics(Collector):
    """Counts the replacements that routers receive with the endpoints of their pipelines.

    Args:
        model: name in the labels.
    """

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        families = Families(self._registry, MODEL)
        self._seconds = families.histogram(
            f"{OURS}:stage_replacement_seconds",
            "Replacements of stages; planned ones only pause the pipeline while they connect.",
            REQUEST_S,
            "lane",
            "phase",
            "planned",
        )
        self._processes = families.counter(
            f"{OURS}:stage_replacements", "Replaced processes of stages.", "lane", "stage", "rank", "planned"
        )
        self._counted: dict[str, tuple[bytes, int]] = {}  # lane -> secret of its pipeline, replacements counted

    def count(self, lane: str, endpoints: Endpoints) -> None:
        """Count new replacements. An earlier router has counted those that this router finds when it starts."""
        known = max((one.number for one in endpoints.replacements), default=0)
        secret, before = self._counted.get(lane, (endpoints.secret, known))
        if secret != endpoints.secret:  # a new pipeline
            before = 0
        for one in endpoints.replacements:
            if one.number > before:
                planned = str(one.planned).lower()
                for phase, seconds in (one.phases | {TOTAL: one.seconds}).items():
                    self._seconds.labels(self._model, lane, phase, planned).observe(seconds)
                for process in one.reasons:
                    stage, rank = divmod(process, endpoints.load.n_ranks)
                    self._processes.labels(self._model, lane, str(stage), str(rank), planned).inc()
        self._counted[lane] = endpoints.secret, known

    def collect(self) -> Iterator[Metric]:
        yield from self._registry.collect()
