"""The ingress's client of the answer keeper: follows answers over a channel, and does the rest over a Serve handle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any

import ray
from ray.serve.handle import DeploymentHandle

from deployments.answers.messages import KeptAnswer, NewAnswer
from deployments.serve_calls import call_replica
from deployments.submission.client import PATIENCE_S, RETRY_S, SubmissionClient
from deployments.submission.messages import RequestFailure
from deployments.submission.protocol import AnswerReference, Attachment
from engine.errors import TargetLostError
from engine.events import StepEvent

CALL_S = 5.0  # a keeper that takes longer to answer is asked again


class AnswerKeeperClient:
    """Every call is repeated while the keeper is being replaced, and raises what the keeper has returned as a failure.

    Args:
        call: calls a method of the keeper's deployment; raises TargetLostError when there is none.
        node: id of this process's Ray node.
        patience: seconds a call waits for a keeper.
    """

    def __init__(self, call: Callable[..., Awaitable[Any]], node: str, patience: float = PATIENCE_S) -> None:
        self._call_once = call
        self._patience = patience

        async def attach() -> Attachment:
            found: Attachment = await call("attach", node)
            return found

        self._readers = SubmissionClient(attach, patience, peer="answer keeper")

    @classmethod
    def over(cls, keeper: DeploymentHandle, patience: float = PATIENCE_S) -> AnswerKeeperClient:
        """A client of the deployment with the handle ``keeper``."""
        call = partial(call_replica, keeper, "the answer keeper", timeout=CALL_S)
        return cls(call, ray.get_runtime_context().get_node_id(), patience)

    async def create(self, new: NewAnswer) -> None:
        """Start an answer; see ``AnswerKeeper.create``."""
        await self._call("create", new)

    async def read(self, id_: str, tenant: str, with_events: bool = False) -> KeptAnswer | None:
        """The answer as it is now; None: this tenant has none with this id."""
        found: KeptAnswer | None = await self._call("read", id_, tenant, with_events)
        return found

    async def cancel(self, id_: str, tenant: str) -> KeptAnswer | None:
        """Cancel an unfinished answer; None: this tenant has none with this id."""
        found: KeptAnswer | None = await self._call("cancel", id_, tenant)
        return found

    async def delete(self, id_: str, tenant: str) -> bool:
        """Cancel and delete an answer; False: this tenant has none with this id."""
        return bool(await self._call("delete", id_, tenant))

    async def finish(self, id_: str, tenant: str, choice: int) -> None:
        """Stop generating a choice, which counts as complete."""
        await self._call("finish", id_, tenant, choice)

    def follow(self, reference: AnswerReference) -> AsyncGenerator[StepEvent, None]:
        """Events of one choice, up to the last one; raises as ``AnswerKeeper.follow``."""
        return self._readers.stream(reference)

    def close(self) -> None:
        """Drop the channel."""
        self._readers.close()

    async def _call(self, method: str, *arguments: Any) -> Any:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                answer = await self._call_once("call", method, *arguments)
            except TargetLostError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_S)
                continue
            if isinstance(answer, RequestFailure):
                raise answer.exception()
            return answer
