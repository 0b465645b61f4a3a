"""The ingress's client of the router: sends requests over a channel, and other calls over a Serve handle."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

import ray
from prometheus_client import CollectorRegistry
from ray.serve.handle import DeploymentHandle

from deployments.metrics.process import ProcessMetrics
from deployments.metrics.reports import Reporter
from deployments.serve_calls import call_replica
from deployments.submission.client import PATIENCE_S, ServedModel, SubmissionClient
from deployments.submission.messages import Health, ModelCard
from deployments.submission.protocol import Attachment
from engine.errors import ModelChangedError, TargetLostError
from engine.events import StepEvent
from engine.request import Request

ANSWER_S = 5.0  # a router that takes longer to answer is not ready
HEALTH_S = 0.8  # timeout of the router's details for /health; probes usually wait for a second
ASK_AGAIN_S = 0.5  # pause between two questions for the router's model
CHECK_MODEL_S = 1.0  # timeout of a router in Serve's health check


class RouterClient:
    """Implements the backend of the HTTP edge.

    Args:
        router: handle of the router deployment.
        card: of the served model.
        patience: seconds a request waits for a router that is being replaced.
    """

    def __init__(self, router: DeploymentHandle, card: ModelCard, patience: float = PATIENCE_S) -> None:
        self._router = router
        self._model = ServedModel(card)
        self._patience = patience
        self._node = ray.get_runtime_context().get_node_id()
        self._counted = CollectorRegistry()
        reporter = Reporter(self._counted, ProcessMetrics("ingress", ray.util.get_node_ip_address()))
        self._submissions = SubmissionClient(self._attach, patience, reporter=reporter, model=self._model)
        self._reporting = asyncio.get_running_loop().create_task(self._submissions.keep_reporting())

    @property
    def model_card(self) -> ModelCard:
        """The served model; it changes when a model with the same tokenizer replaces it."""
        return self._model.card

    @property
    def counted(self) -> CollectorRegistry:
        """Registry of this process's metrics; the router exposes their sums over all ingresses."""
        return self._counted

    def set_tokenizer(self, tokenizer: str) -> None:
        """Set the hash of the edge's tokenizer; requests for a model with another tokenizer are refused."""
        self._model.tokenizer = tokenizer

    async def agree_on_tokenizer(self) -> None:
        """Wait for a router whose model has the edge's tokenizer: while models change, the old router may answer.

        Raises:
            ModelChangedError: after ``patience`` seconds the router's model still has another tokenizer.
        """
        deadline = time.monotonic() + self._patience
        while True:
            try:
                self._model.update(self.model_card)
                return
            except ModelChangedError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(ASK_AGAIN_S)
            with contextlib.suppress(TargetLostError):
                self._model.card = await self._call("card")

    async def check_model(self) -> None:
        """Notice a change of models while there are no requests.

        Raises:
            ModelChangedError: the router's model has another tokenizer than the edge.
        """
        await self._submissions.check_model(CHECK_MODEL_S)
        if self._model.mismatch:
            raise ModelChangedError(self._model.mismatch)

    async def submit(self, request: Request) -> AsyncGenerator[StepEvent, None]:
        """Start one choice; engine errors come from the stream's first item."""
        return self._submissions.stream(request)

    async def check_ready(self) -> None:
        """Return if the router would serve a request sent now; asks over the channel of requests.

        Raises:
            TargetLostError: with the reason why it would not, or the router does not answer in time.
        """
        if _is_stopping():
            raise TargetLostError("this HTTP process is being stopped")
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._submissions.check_ready()
        except TimeoutError:
            raise TargetLostError("no router answers on the channel of requests") from None

    async def health(self) -> Health:
        """The router's health, by a call of Ray; not ok when the router does not answer soon."""
        with contextlib.suppress(TargetLostError):
            health: Health = await self._call("health", timeout=HEALTH_S)
            return health
        return Health(ok=False, reason="the router does not answer")

    async def metrics_text(self) -> str:
        """Prometheus exposition text of the router; raises TargetLostError when it does not answer."""
        self._submissions.report_metrics()  # arrives before the scrape, or with the next one
        text: str = await self._call("metrics")
        return text

    async def _attach(self) -> Attachment:
        attachment: Attachment = await self._call("attach", self._node)
        return attachment

    async def _call(self, method: str, *arguments: Any, timeout: float = ANSWER_S) -> Any:
        return await call_replica(self._router, "the router", method, *arguments, timeout=timeout)


def _is_stopping() -> bool:
    """Whether Serve is stopping this replica; Serve has no public way to ask.

    Load balancers must know at once. Serve calls the application only when no request runs any more.
    """
    from ray._private.worker import global_worker

    replica = getattr(global_worker.actors.get(global_worker.actor_id), "_replica_impl", None)
    return bool(getattr(replica, "_shutting_down", False))
