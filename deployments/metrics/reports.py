"""Ingresses report their metrics to the router, which sums them: a scrape of any ingress shows the sums over all.

A report holds the growth of counters and histograms since the last one, and the values of gauges. The router adds the
growth, and keeps the gauges while the ingress is connected.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

SUMMED = ("counter", "histogram")  # kinds whose growth is added

Key = tuple[str, tuple[tuple[str, str], ...]]  # name of a series, and its labels


class Series(msgspec.Struct, frozen=True, array_like=True):
    """One line of an exposition; ``value`` is its value or its growth."""

    name: str
    labels: dict[str, str]
    value: float

    @property
    def key(self) -> Key:
        return self.name, tuple(self.labels.items())


class MetricFamily(msgspec.Struct, frozen=True, array_like=True):
    """Series with the same name and help text."""

    name: str
    text: str
    kind: str  # as Prometheus calls it
    series: list[Series]


class Reporter:
    """Builds the reports of an ingress.

    Args:
        counted: counters and histograms of this process.
        state: gauges of this process.
    """

    def __init__(self, counted: CollectorRegistry, state: Collector) -> None:
        self._counted = counted
        self._state = state
        self._reported: dict[Key, float] = {}

    def take(self) -> list[MetricFamily]:
        """The next report; a family that has not grown has no series, but a scrape still names it."""
        grown = [self._growth(metric) for metric in self._counted.collect()]
        return grown + [_family(metric) for metric in self._state.collect()]

    def _growth(self, metric: Metric) -> MetricFamily:
        whole = _family(metric)
        grown = []
        for series in whole.series:
            before = self._reported.get(series.key)
            if series.value != before:
                grown.append(Series(series.name, series.labels, series.value - (before or 0.0)))
                self._reported[series.key] = series.value
        return MetricFamily(whole.name, whole.text, whole.kind, grown)


def _family(metric: Metric) -> MetricFamily:
    series = [Series(sample.name, sample.labels, sample.value) for sample in metric.samples]
    return MetricFamily(metric.name, metric.documentation, metric.type, series)


class Reports(Collector):
    """Collects the reports: sums over all ingresses, and the gauges of those that are connected."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[MetricFamily, dict[Key, float]]] = {}
        self._states: dict[int, list[MetricFamily]] = {}  # by ingress

    def add(self, ingress: int, report: list[MetricFamily]) -> None:
        """Add a report; ``ingress`` is unique among the connected ingresses."""
        for family in report:
            if family.kind in SUMMED:
                _, sums = self._sums.setdefault(family.name, (family, {}))
                for series in family.series:
                    sums[series.key] = sums.get(series.key, 0.0) + series.value
        self._states[ingress] = [family for family in report if family.kind not in SUMMED]

    def forget(self, ingress: int) -> None:
        """Drop the gauges of an ingress that has disconnected."""
        self._states.pop(ingress, None)

    def collect(self) -> Iterator[Metric]:
        for family, sums in self._sums.values():
            yield _metric(family, [Series(name, dict(labels), value) for (name, labels), value in sums.items()])
        states: dict[str, tuple[MetricFamily, list[Series]]] = {}
        for report in self._states.values():
            for family in report:
                states.setdefault(family.name, (family, []))[1].extend(family.series)
        for family, series in states.values():
            yield _metric(family, series)


def _metric(family: MetricFamily, series: list[Series]) -> Metric:
    metric = Metric(family.name, family.text, family.kind)
    metric.samples = [Sample(one.name, one.labels, one.value) for one in series]
    return metric
