"""The answer keeper as a Serve deployment with one replica."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ray
from prometheus_client import CollectorRegistry
from ray.serve.handle import DeploymentHandle

from deployments.answers.keeper import AnswerKeeper
from deployments.answers.log import AnswerLog
from deployments.answers.metrics import AbandonedAnswers, AnswerGauges
from deployments.credentials import check_credentials
from deployments.metrics.reports import Reporter
from deployments.observability.logs import configure
from deployments.options import AnswerOptions
from deployments.serve_calls import call_replica, check_single_replica
from deployments.submission.client import SubmissionClient
from deployments.submission.messages import RequestFailure
from deployments.submission.protocol import Attachment
from deployments.submission.server import SubmissionServer
from engine.errors import SpectraError, StepFailedError, TargetLostError

CALL_S = 5.0  # a router that takes longer to answer is asked again
CALLS = frozenset({"create", "read", "cancel", "delete", "finish"})
FLUSH_S = 0.2  # for events that are on their way to readers when the replica is stopped

logger = logging.getLogger(__name__)


class AnswerKeeperDeployment:
    """Wraps ``AnswerKeeper``; readers follow answers over the channel of its ``SubmissionServer``.

    Calls return failures, because Ray wraps exceptions. An exception means that this replica is being replaced.

    Args:
        router: handle of the router deployment.
        options: of the keeper.
    """

    async def __init__(self, router: DeploymentHandle, options: AnswerOptions) -> None:  # type: ignore[misc]  # Serve awaits async constructors
        configure(options.logs, "AnswerKeeper")
        node = ray.util.get_node_ip_address()
        check_credentials(options.credentials, node)
        check_single_replica("one keeper has all answers")
        registry = CollectorRegistry()

        async def attach() -> Attachment:
            node_id = ray.get_runtime_context().get_node_id()
            found: Attachment = await call_replica(router, "the router", "attach", node_id, timeout=CALL_S)
            return found

        self._keeper = AnswerKeeper(lambda request: self._router.stream(request), options.limits, _open_log(options))
        registry.register(AbandonedAnswers(self._keeper))
        self._router = SubmissionClient(attach, reporter=Reporter(registry, AnswerGauges(self._keeper, node)))
        self._server = SubmissionServer(self._keeper.follow)
        self._keeper.on_lost = self._server.disconnect
        self._grace = FLUSH_S if options.store else options.grace  # seconds that readers have at the end
        await self._keeper.start()
        self._reporting = asyncio.get_running_loop().create_task(self._router.keep_reporting())

    async def __del__(self) -> None:
        """Serve awaits this when it stops the replica: readers go to the next keeper, which has unfinished answers."""
        if getattr(self, "_reporting", None) is None:  # the constructor failed
            return
        self._reporting.cancel()
        await self._server.drain(self._grace, lambda: True)
        await self._keeper.close()
        self._router.close()

    async def check_health(self) -> None:
        """Serve calls this periodically, and replaces the replica when it raises."""
        if self._keeper.is_lost:
            raise TargetLostError("another answer keeper has the answers; this one stops")

    async def attach(self, node: str) -> Attachment:
        """Address and secret for an ingress on the Ray node with the id ``node``."""
        is_here = node == ray.get_runtime_context().get_node_id()
        return await self._server.attachment(None if is_here else ray.util.get_node_ip_address())

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the keeper, one of ``CALLS``; returns the failure that it raises."""
        assert method in CALLS
        await self._server.attachment()  # raises once this replica is being replaced
        try:
            return await getattr(self._keeper, method)(*arguments)
        except SpectraError as error:
            if self._keeper.is_lost:
                raise
            return RequestFailure.of(error)
        except Exception:
            logger.exception("the answer keeper failed on a call")
            return RequestFailure.of(StepFailedError("the answer keeper failed on this call"))


def _open_log(options: AnswerOptions) -> AnswerLog | None:
    if not options.store:
        return None
    from deployments.answers.redis_log import RedisAnswerLog  # its client loads for half a second

    longest = options.limits.longest_seconds + options.limits.keep_seconds
    return RedisAnswerLog(options.store, options.name, options.instance, longest)
