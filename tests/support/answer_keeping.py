"""An answer keeper, its server and an ingress's client, in the test's event loop; Ray alone is missing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from deployments.answers.client import AnswerKeeperClient
from deployments.answers.keeper import AnswerKeeper
from deployments.answers.log import AnswerLog
from deployments.answers.messages import AnswerStatus, NewAnswer
from deployments.options import AnswerLimits
from deployments.submission.messages import RequestFailure
from deployments.submission.protocol import AnswerReference
from deployments.submission.server import RunRequest, SubmissionServer
from engine.errors import SpectraError
from engine.events import StepEvent
from engine.request import Request
from tests.support.submission import REQUEST
from tests.support.waiting import LIMIT_S, wait_until_async

TENANT = "tenant"


@dataclass
class PassingClock:
    """Seconds since 1970, which a test can let pass."""

    passed: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.passed


@dataclass
class Keeping:
    """A keeper that may be replaced, and a client that finds the current one."""

    run: RunRequest
    limits: AnswerLimits
    clock: PassingClock = field(default_factory=PassingClock)
    keeper: AnswerKeeper = field(init=False)
    server: SubmissionServer = field(init=False)
    client: AnswerKeeperClient = field(init=False)

    async def start(self, log: AnswerLog | None = None) -> AnswerKeeper:
        """Start a keeper; calls and readers find it from now on."""
        keeper = AnswerKeeper(self.run, self.limits, log, self.clock)
        await keeper.start()
        self.keeper, self.server = keeper, SubmissionServer(keeper.follow, beat=LIMIT_S)
        keeper.on_lost = self.server.disconnect
        return keeper

    async def call(self, method: str, *arguments: Any) -> Any:
        """As ``AnswerKeeperDeployment`` answers."""
        attachment = await self.server.attachment()
        if method == "attach":
            return attachment
        try:
            return await getattr(self.keeper, arguments[0])(*arguments[1:])
        except SpectraError as error:
            return RequestFailure.of(error)

    async def kill(self) -> None:
        """End the keeper as SIGKILL does: nothing is written any more, and the lease stays."""
        self.server.disconnect()
        tasks = self.keeper._stop()
        if self.keeper._writer._running is not None:
            tasks.append(self.keeper._writer._running)
            tasks[-1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def create(self, name: str, *requests: Request, tenant: str = TENANT, is_background: bool = False) -> None:
        chosen = [*requests] or [REQUEST]
        await self.client.create(
            NewAnswer(
                id=name,
                tenant=tenant,
                is_background=is_background,
                requests=chosen,
                edge=b"edge",
                created=self.clock(),
            )
        )

    async def follow(self, name: str, after: int = 0, choice: int = 0, tenant: str = TENANT) -> list[StepEvent]:
        return [event async for event in self.client.follow(AnswerReference(name, tenant, choice, after))]

    async def status(self, name: str, tenant: str = TENANT) -> AnswerStatus | None:
        found = await self.client.read(name, tenant)
        return None if found is None else found.status

    async def wait_for(self, name: str, status: AnswerStatus | None, tenant: str = TENANT) -> None:
        def current() -> AnswerStatus | None:
            entry = self.keeper.kept.by_id.get(name)
            return None if entry is None else entry.status

        await wait_until_async(lambda: current() == status, lambda: f"{name} is {current()}, not {status}")

    def pass_time(self, seconds: float) -> None:
        self.clock.passed += seconds
        self.keeper.deadlines.check()


@asynccontextmanager
async def keeping(
    run: RunRequest, log: AnswerLog | None = None, patience: float = LIMIT_S, **limits: float
) -> AsyncIterator[Keeping]:
    """``async with keeping(router.stream, unread_seconds=5) as kept: await kept.create("a", job)``."""
    kept = Keeping(run, AnswerLimits(**limits))  # type: ignore[arg-type]
    kept.client = AnswerKeeperClient(kept.call, "node", patience)
    await kept.start(log)
    try:
        yield kept
    finally:
        kept.client.close()
        await kept.server.close()
        await kept.keeper.close()
