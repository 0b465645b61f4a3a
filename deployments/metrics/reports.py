"""What an ingress counts reaches the router, which adds it up: so one scrape, of any ingress, shows the sums of all.

An ingress sends what its counters and histograms have grown by since its last report, and its gauges as they are. The
router adds the former and keeps the latter as long as the ingress is connected.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

COUNTED = ("counter", "histogram")  # kinds that are added up

Key = tuple[str, tuple[tuple[str, str], ...]]  # name of a series, and its labels


class Series(msgspec.Struct, frozen=True, array_like=True):
    """One line of an exposition, or what it has grown by."""

    name: str
    labels: dict[str, str]
    value: float

    @property
    def key(self) -> Key:
        """What identifies the series."""
        return self.name, tuple(self.labels.items())


class MetricFamily(msgspec.Struct, frozen=True, array_like=True):
    """Series with one explanation."""

    name: str
    text: str
    kind: str  # as Prometheus calls it
    series: list[Series]


class Reporter:
    """The ingress's end.

    Args:
        counted: counters and histograms of this process.
        state: what describes this process.
    """

    def __init__(self, counted: CollectorRegistry, state: Collector) -> None:
        self._counted = counted
        self._state = state
        self._reported: dict[Key, float] = {}

    def take(self) -> list[MetricFamily]:
        """The next report; families that have not grown are there without series, so that a scrape names them."""
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
    """The router's end: the sums over all ingresses, and the state of those that are connected."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[MetricFamily, dict[Key, float]]] = {}
        self._states: dict[int, list[MetricFamily]] = {}  # by ingress

    def add(self, ingress: int, report: list[MetricFamily]) -> None:
        """Take a report; ``ingress`` is a number that no other connected ingress has."""
        for family in report:
            if family.kind in COUNTED:
                _, sums = self._sums.setdefault(family.name, (family, {}))
                for series in family.series:
                    sums[series.key] = sums.get(series.key, 0.0) + series.value
        self._states[ingress] = [family for family in report if family.kind not in COUNTED]

    def forget(self, ingress: int) -> None:
        """An ingress has disconnected."""
        self._states.pop(ingress, None)

    def collect(self) -> Iterator[Metric]:
        """All families."""
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
