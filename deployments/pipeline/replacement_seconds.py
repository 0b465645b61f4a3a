"""How long replacements of stages took, phase by phase, as the pipelines' owners tell it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from deployments.metrics.families import MODEL, OURS, REQUEST_S, Families
from deployments.pipeline.endpoints import Endpoints

TOTAL = "total"  # beside the phases: from the moment the reason was known until the pipeline was whole


class ReplacementSeconds(Collector):
    """A histogram of what routers are told with the endpoints of their pipelines.

    Args:
        model: name in the labels.
    """

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        self._seconds = Families(self._registry, MODEL).histogram(
            f"{OURS}:stage_replacement_seconds",
            "Replacements of stages; planned ones only pause the pipeline while they connect.",
            REQUEST_S,
            "lane",
            "phase",
            "planned",
        )
        self._counted: dict[str, tuple[bytes, int]] = {}  # lane -> its pipeline's secret, replacements known of it

    def count(self, lane: str, endpoints: Endpoints) -> None:
        """Count the replacements that are new; those that a router finds when it starts, another one has counted."""
        known = max((one.number for one in endpoints.replacements), default=0)
        secret, before = self._counted.get(lane, (endpoints.secret, known))
        if secret != endpoints.secret:  # a pipeline that began after the last one
            before = 0
        for one in endpoints.replacements:
            if one.number > before:
                for phase, seconds in (one.phases | {TOTAL: one.seconds}).items():
                    self._seconds.labels(self._model, lane, phase, str(one.planned).lower()).observe(seconds)
        self._counted[lane] = endpoints.secret, known

    def collect(self) -> Iterator[Metric]:
        """The family."""
        yield from self._registry.collect()
