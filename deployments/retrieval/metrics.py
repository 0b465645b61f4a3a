"""Prometheus metrics of retrieval in the router's process: of its reader and sender, and of the service's last status.

The shared namespace and those that learn have their own series. All other namespaces share one series, which shows the
stalest of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from prometheus_client import Metric
from prometheus_client.registry import Collector

from deployments.metrics.families import MODEL, OURS, read_family
from retrieval_store.service.manifest_feed import NamespaceStatus
from retrieval_store.service.reader import Reader
from retrieval_store.service.sender import OutputSender

OTHERS = "*"  # label of the shared series; not a valid name of a namespace


class RetrievalMetrics(Collector):
    """Reads all values at a scrape.

    Args:
        model: label.
        reader: of this process.
        named: namespaces with their own series; the shared one first.
        sender: of outputs to learn from; None: no namespace learns.
    """

    def __init__(self, model: str, reader: Reader, named: Collection[str], sender: OutputSender | None) -> None:
        self._model = model
        self._reader = reader
        self._named = tuple(named)
        self._sender = sender

    def collect(self) -> Iterator[Metric]:
        namespaces = self._group_namespaces()
        stale = [((self._model, name), self._staleness(states)) for name, states in namespaces.items()]
        tokens = [((self._model, name), sum(state.tokens for state in states)) for name, states in namespaces.items()]
        text = "Seconds since the store last confirmed that the served snapshots are current."
        yield read_family("gauge", f"{OURS}:retrieval_staleness_seconds", text, (MODEL, "namespace"), stale)
        text = "Tokens of the served snapshot and delta."
        yield read_family("gauge", f"{OURS}:retrieval_snapshot_tokens", text, (MODEL, "namespace"), tokens)
        status, n_dropped = self._reader.status, 0 if self._sender is None else self._sender.n_dropped
        for name, text, value in (
            (
                "retrieval_refused",
                "Snapshots that were refused: damaged, of another model, missing or too large.",
                status.refused,
            ),
            ("retrieval_swaps", "Times the router began to draft from other snapshots.", self._reader.n_swaps),
            ("live_texts", "Outputs appended to the log of live texts.", status.live_texts),
            ("live_dropped", "Outputs lost on the way to that log.", status.live_dropped + n_dropped),
            ("live_deltas", "Deltas built from live texts.", status.folds),
            ("live_compactions", "Snapshots built from live texts and published.", status.compactions),
        ):
            yield read_family("counter", f"{OURS}:{name}", text, (MODEL,), [((self._model,), value)])

    def detail(self) -> dict[str, str | int | float | bool]:
        """State of the shared namespace, and learning failures of any namespace, for health checks."""
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

    def _group_namespaces(self) -> dict[str, list[NamespaceStatus]]:
        """Namespaces by the label of their series."""
        series: dict[str, list[NamespaceStatus]] = {}
        for name, state in self._reader.status.namespaces.items():
            series.setdefault(name if name in self._named else OTHERS, []).append(state)
        return series or {self._named[0]: []}

    def _staleness(self, states: list[NamespaceStatus]) -> float:
        """Staleness of the stalest namespace in seconds; it grows while the service is silent."""
        return max((state.staleness for state in states), default=0.0) + self._reader.silence
