"""Prometheus metrics of retrieval in the router's process: its reader, its sender, and the service's last status.

The shared namespace and the namespaces that learn have series of their own. All others share one series, which shows
the most stale of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from retrieval_store.service.manifest_feed import NamespaceStatus
from retrieval_store.service.reader import Reader
from retrieval_store.service.sender import OutputSender

OTHERS = "*"  # label of the shared series; not a valid name of a namespace


class RetrievalMetrics(Collector):
    """Reads everything when scraped.

    Args:
        model: name in the labels.
        reader: of this process.
        named: namespaces with series of their own; the shared one first.
        sender: of outputs to learn from; None: no namespace learns.
    """

    def __init__(self, model: str, reader: Reader, named: Collection[str], sender: OutputSender | None) -> None:
        self._model = model
        self._reader = reader
        self._named = tuple(named)
        self._sender = sender

    def collect(self) -> Iterator[Metric]:
        """All families."""
        staleness = GaugeMetricFamily(
            "spectra:retrieval_staleness_seconds",
            "Seconds since the store last confirmed that the served snapshots are current.",
            labels=["model_name", "namespace"],
        )
        tokens = GaugeMetricFamily(
            "spectra:retrieval_snapshot_tokens",
            "Tokens of the snapshot and the delta that are served.",
            labels=["model_name", "namespace"],
        )
        for name, states in self._by_series().items():
            staleness.add_metric([self._model, name], self._staleness(states))
            tokens.add_metric([self._model, name], sum(state.tokens for state in states))
        yield staleness
        yield tokens
        yield from self._counters()

    def detail(self) -> dict[str, str | int | float | bool]:
        """State of the shared namespace, and failures of learning in any, for health checks."""
        shared = self._named[0]
        base, delta = self._reader.versions(shared)
        state = self._reader.status.namespaces.get(shared)
        problem = state.problem if state is not None else "the retrieval service has not answered yet"
        if self._reader.silence > self._reader.patience:
            problem = f"the retrieval service has been silent for {self._reader.silence:.0f} s"
        return {
            "retrieval_version": base,
            "retrieval_delta": delta,
            "retrieval_staleness_seconds": round(self._staleness([state] if state is not None else []), 1),
            "retrieval_problem": problem,
            "retrieval_learning_problem": self._learning_problem(),
        }

    def _learning_problem(self) -> str:
        states = self._reader.status.namespaces
        found = [(name, states[name].learning_problem) for name in self._named if name in states]
        return "; ".join(f"namespace {name!r} {problem}" for name, problem in found if problem)

    def _by_series(self) -> dict[str, list[NamespaceStatus]]:
        series: dict[str, list[NamespaceStatus]] = {}
        for name, state in self._reader.status.namespaces.items():
            series.setdefault(name if name in self._named else OTHERS, []).append(state)
        return series or {self._named[0]: []}

    def _staleness(self, states: list[NamespaceStatus]) -> float:
        """Staleness of the most stale namespace, in seconds; grows while the service is silent."""
        return max((state.staleness for state in states), default=0.0) + self._reader.silence

    def _counters(self) -> Iterator[Metric]:
        status, dropped = self._reader.status, 0 if self._sender is None else self._sender.n_dropped
        for name, text, value in (
            (
                "retrieval_refused",
                "Snapshots that were refused: damaged, of another model, missing or too large.",
                status.refused,
            ),
            ("retrieval_swaps", "Times the router began to draft from other snapshots.", self._reader.n_swaps),
            ("live_texts", "Outputs appended to the log of live texts.", status.live_texts),
            ("live_dropped", "Outputs lost on the way to that log.", status.live_dropped + dropped),
            ("live_deltas", "Deltas made of live texts.", status.folds),
            ("live_compactions", "Snapshots made of live texts and published.", status.compactions),
        ):
            family = CounterMetricFamily(f"spectra:{name}", text, labels=["model_name"])
            family.add_metric([self._model], value)
            yield family
