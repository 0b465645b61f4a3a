"""Ingresses report their metrics to the router, which sums them: a scrape of any ingress shows the sums over all.

A report holds the growth of counters and histograms since the last one, and the values of gauges. The router adds the
growth, and keeps the gauges while the ingress is connected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

SUMMED = ("counter", "histogram")  # kinds whose growth is added

SeriesKey = tuple[str, tuple[tuple[str, str], ...]]  # name and labels of a series


class MetricFamily(msgspec.Struct, frozen=True, array_like=True):
    """Series with the same name and help text."""

    name: str
    text: str
    kind: str  # as Prometheus calls it
    series: list[tuple[SeriesKey, float]]  # with values, or with their growth


class Reporter:
    """Builds the reports of an ingress.

    Args:
        counted: counters and histograms of this process.
        state: gauges of this process.
    """

    def __init__(self, counted: CollectorRegistry, state: Collector) -> None:
        self._counted = counted
        self._state = state
        self._reported: dict[SeriesKey, float] = {}

    def take(self) -> list[MetricFamily]:
        """The next report; a family that has not grown has no series, but a scrape still names it."""
        grown = [self._growth(metric) for metric in self._counted.collect()]
        return grown + [_family(metric) for metric in self._state.collect()]

    def _growth(self, metric: Metric) -> MetricFamily:
        whole = _family(metric)
        before = self._reported
        grown = [(key, value - before.get(key, 0.0)) for key, value in whole.series if value != before.get(key)]
        self._reported.update(whole.series)
        return MetricFamily(whole.name, whole.text, whole.kind, grown)


def _family(metric: Metric) -> MetricFamily:
    series = [((sample.name, tuple(sample.labels.items())), sample.value) for sample in metric.samples]
    return MetricFamily(metric.name, metric.documentation, metric.type, series)


class Reports(Collector):
    """Collects the reports: sums over all ingresses, and the gauges of those that are connected.

    Args:
        own: gauges of this process, some of which ingresses have too: an exposition may name a family only once.
    """

    def __init__(self, own: Collector | None = None) -> None:
        self._own = own
        self._sums: dict[str, tuple[MetricFamily, dict[SeriesKey, float]]] = {}
        self._states: dict[int, list[MetricFamily]] = {}  # by ingress

    def add(self, ingress: int, report: list[MetricFamily]) -> None:
        """Add a report; ``ingress`` is unique among the connected ingresses."""
        for family in report:
            if family.kind in SUMMED:
                _, sums = self._sums.setdefault(family.name, (family, {}))
                for key, growth in family.series:
                    sums[key] = sums.get(key, 0.0) + growth
        self._states[ingress] = [family for family in report if family.kind not in SUMMED]

    def forget(self, ingress: int) -> None:
        """Drop the gauges of an ingress that has disconnected."""
        self._states.pop(ingress, None)

    def collect(self) -> Iterator[Metric]:
        for family, sums in self._sums.values():
            yield _metric(family, sums.items())
        states: dict[str, tuple[MetricFamily, list[tuple[SeriesKey, float]]]] = {}
        for report in ([*map(_family, self._own.collect())] if self._own else [], *self._states.values()):
            for family in report:
                states.setdefault(family.name, (family, []))[1].extend(family.series)
        for family, series in states.values():
            yield _metric(family, series)


def _metric(family: MetricFamily, series: Iterable[tuple[SeriesKey, float]]) -> Metric:
    metric = Metric(family.name, family.text, family.kind)
    metric.samples = [Sample(name, dict(labels), value) for (name, labels), value in series]
    return metric
