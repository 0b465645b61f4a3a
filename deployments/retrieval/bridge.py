"""The router's end of retrieval: the reader it drafts from, the sender of outputs to learn from, and their metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest
from ray.serve.handle import DeploymentHandle

from deployments.options import RetrievalOptions
from deployments.retrieval.client import ReaderFactory, process_client
from deployments.retrieval.metrics import RetrievalMetrics
from retrieval_store.service.sender import OutputSender
from speculators.method import SpeculatorOptions


class RouterRetrieval:
    """Follows the retrieval service from its construction on, and never waits for it.

    Args:
        handle: of the retrieval deployment.
        options: of that deployment.
        model: name in metrics.
        speculators: settings of the methods; their own library is looked up beside the service's snapshots.
    """

    def __init__(
        self, handle: DeploymentHandle, options: RetrievalOptions, model: str, speculators: SpeculatorOptions
    ) -> None:
        factory = ReaderFactory(handle, options.namespace, options.target.tokenizer_hash, speculators.retrieval)
        self.speculators = replace(speculators, retrieval=factory)
        self._sender = OutputSender(process_client(handle), options.live) if options.live else None
        if self._sender is not None:
            self._sender.start()
        named = dict.fromkeys([options.namespace, *options.live])
        self._metrics = RetrievalMetrics(model, factory(), named, self._sender)
        self._registry = CollectorRegistry()
        self._registry.register(self._metrics)

    @property
    def learn(self) -> Callable[[str, Sequence[int]], None] | None:
        """Takes a namespace and an output of it; None when no namespace learns."""
        return None if self._sender is None else self._sender.put

    def detail(self) -> dict[str, str | int | float | bool]:
        """For health checks."""
        return self._metrics.detail()

    def metrics_text(self) -> str:
        """Prometheus exposition text."""
        return generate_latest(self._registry).decode()
