"""Names, labels and buckets of the metrics; vLLM's names where vLLM has a metric with the same meaning.

There are two ways to make a family. ``Families`` makes counters and histograms that are updated as things happen.
``read_family`` builds one at a scrape, from values that exist anyway. docs/reference/metrics.md explains every metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

VLLM, OURS = "vllm", "spectra"  # prefixes of names
MODEL, ENGINE = "model_name", "engine"  # vLLM's labels; an engine is a lane

# Seconds. vLLM's buckets, and finer ones below its first, because small models have steps of a millisecond.
_LONG_S = (10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_SHORT_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0)
REQUEST_S = (*_SHORT_S, *_LONG_S)
_FIRST_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
FIRST_TOKEN_S = (*_FIRST_S, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_BETWEEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
TOKEN_S = (*_BETWEEN_S, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICES = (1, 2, 5, 10, 20)

disable_created_metrics()  # type: ignore[no-untyped-call]  # vLLM has no ``_created`` series either


def token_buckets(most: int) -> list[float]:
    """vLLM's buckets of a request's tokens: 1, 2, 5, 10, 20, .. up to ``most`` tokens."""
    steps = (mantissa * 10**exponent for exponent in range(10) for mantissa in (1, 2, 5))
    return [float(bound) for bound in steps if bound <= most]


def read_family(
    kind: Literal["counter", "gauge"],
    name: str,
    text: str,
    labels: Sequence[str],
    series: Iterable[tuple[Sequence[str], float]],
) -> Metric:
    """A family for one scrape; ``series`` are pairs of label values and the value now (of a counter: since the start).

    Series of a counter end in ``_total``.
    """
    family = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, text, labels=labels)
    for values, value in series:
        family.add_metric(values, value)
    return family


class Families:
    """Makes the families of one registry.

    Args:
        registry: of the families.
        labels: names of the labels that every family has first.
    """

    def __init__(self, registry: CollectorRegistry, *labels: str) -> None:
        self._registry = registry
        self._labels = labels

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """A counter; its series end in ``_total``."""
        return Counter(name, text, (*self._labels, *labels), registry=self._registry)

    def histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        """A histogram with the upper bounds ``buckets``."""
        return Histogram(name, text, (*self._labels, *labels), buckets=buckets, registry=self._registry)


class AliasCollector(Collector):
    """Exposes a histogram under its former name, too.

    Args:
        name: the former name.
        histogram: with the current name.
    """

    def __init__(self, name: str, histogram: Histogram) -> None:
        self._name = name
        self._histogram = histogram

    def collect(self) -> Iterator[Metric]:
        for metric in self._histogram.collect():
            copy = Metric(self._name, f"{metric.documentation} Former name of {metric.name}.", metric.type)
            for sample in metric.samples:
                copy.samples.append(sample._replace(name=self._name + sample.name[len(metric.name) :]))
            yield copy
