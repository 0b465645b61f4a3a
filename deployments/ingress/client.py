"""The ingress's end of the router: requests over a channel of their own, questions over a Serve handle."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

import ray
from prometheus_client import CollectorRegistry
from ray.serve.handle import DeploymentHandle

from deployments.metrics.process import Process
from deployments.metrics.reports import Reporter
from deployments.serve_calls import GONE, answer_of
from deployments.submission.client import PATIENCE_S, SubmissionChannel
from deployments.submission.messages import Health, ModelCard
from deployments.submission.protocol import Attachment
from deployments.submission.served_model import ServedModel
from engine.errors import ModelChangedError, TargetLostError
from engine.events import StepEvent
from engine.request import Request

ANSWER_S = 5.0  # a router that does not answer so long is not ready
DETAILS_S = 0.8  # for what /health tells beside: less than the second that probes usually wait
ASK_AGAIN_S = 0.5  # pause between two questions for the router's model
LOOK_S = 1.0  # for a router to answer; Serve waits for the health check


class RouterClient:
    """Implements the edge's backend.

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
        reporter = Reporter(self._counted, Process("ingress", ray.util.get_node_ip_address()))
        self._channel = SubmissionChannel(self._attach, patience, reporter=reporter, model=self._model)
        self._reporting = asyncio.get_running_loop().create_task(self._channel.keep_reporting())

    @property
    def model_card(self) -> ModelCard:
        """The served model; another one after a change of models that keeps the tokenizer."""
        return self._model.card

    def encode_with(self, tokenizer: str) -> None:
        """Say by its hash which tokenizer the edge has: requests for a model with another one are refused."""
        self._model.tokenizer = tokenizer

    async def agree(self) -> None:
        """Wait for a router whose model has the edge's tokenizer: while models change, the old router may still answer.

        Raises:
            ModelChangedError: after ``patience`` seconds there is only one with another tokenizer.
        """
        deadline = time.monotonic() + self._patience
        while True:
            try:
                self._model.adopt(self.model_card)
                return
            except ModelChangedError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(ASK_AGAIN_S)
            with contextlib.suppress(TargetLostError):
                self._model.card = await self._answer("card")

    async def look(self) -> None:
        """Learn of a change of models also while there are no requests.

        Raises:
            ModelChangedError: the router's model has another tokenizer than the edge.
        """
        await self._channel.look(LOOK_S)
        if self._model.trouble:
            raise ModelChangedError(self._model.trouble)

    @property
    def counted(self) -> CollectorRegistry:
        """Takes the metrics of this process; the router shows them, added up over all ingresses."""
        return self._counted

    async def submit(self, request: Request) -> AsyncGenerator[StepEvent, None]:
        """Start one choice; engine errors come from the stream's first item."""
        return self._channel.stream(request)

    async def _attach(self) -> Attachment:
        attachment: Attachment = await self._answer("attach", self._node)
        return attachment

    async def check_ready(self) -> None:
        """Ask the router over the channel that requests take; returns if it would serve a request sent now.

        Raises:
            TargetLostError: why it would not, or that it does not answer in time.
        """
        if _is_stopping():
            raise TargetLostError("this HTTP process is being stopped")
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._channel.check_ready()
        except TimeoutError:
            raise TargetLostError("no router answers on the channel that requests take") from None

    async def health(self) -> Health:
        """The router's own word, by a call of Ray; not ready when it does not answer soon."""
        with contextlib.suppress(TargetLostError):
            health: Health = await self._answer("health", within=DETAILS_S)
            return health
        return Health(ok=False, reason="the router does not answer")

    async def metrics_text(self) -> str:
        """Prometheus exposition text of the router; raises TargetLostError when it does not answer."""
        self._channel.report()  # what it has counted until now arrives first, or with the next scrape
        text: str = await self._answer("metrics")
        return text

    async def _answer(self, method: str, *arguments: Any, within: float = ANSWER_S) -> Any:
        try:
            async with asyncio.timeout(within):
                return await answer_of(self._router.options(method_name=method).remote(*arguments))
        except (*GONE, TimeoutError) as error:
            raise TargetLostError(f"the router does not answer: {type(error).__name__}") from error


def _is_stopping() -> bool:
    """Whether Serve is stopping this replica. Balancers hear of it at once, the application only when no request runs
    any more, and Serve has no public way to ask."""
    from ray._private.worker import global_worker

    replica = getattr(global_worker.actors.get(global_worker.actor_id), "_replica_impl", None)
    return bool(getattr(replica, "_shutting_down", False))
