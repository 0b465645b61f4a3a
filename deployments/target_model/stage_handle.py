"""The handle of one stage actor, from its start until its process is dead.

A process gets its number only with ``come_up``, so a standby can replace any stage.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from deployments.options import PipelineOptions
from deployments.pipeline.endpoints import ProcessIdentity, StageEndpoint, kill_here
from deployments.pipeline.stage_reports import StagePlan, StageRoom
from deployments.stage.actor import Loaded, Pulse, StageActor
from deployments.target_model.bundles import Bundle
from engine.errors import ConfigError, SpectraError, TargetLostError
from engine.target_model.options import TargetOptions

PING_EVERY_S = 1.0
LOADING_S = 60.0  # least time a ping may stay unanswered during loading: a slow disk can hold the process up
SERVE_S = 15.0  # least time for ``serve``
KILL_S = 10.0  # for killing a process of another node
LEAVE_S = 2.0  # to remove its sockets before it is killed
CALLS = 5  # threads of the actor: one or two run ``hold``, one answers pings, the others serve calls
MAX_REASON = 400  # characters


class StageHandle:
    """A stage actor.

    Args:
        actor: Ray's handle of a ``StageActor``.
        name: for messages.
        bundle: in which it runs.
        timeout: seconds a ping may stay unanswered.
    """

    def __init__(self, actor: Any, name: str, bundle: Bundle, timeout: float) -> None:
        self.name = name
        self.bundle = bundle
        self.seen = time.monotonic()  # when it answered last
        self.identity: ProcessIdentity | None = None  # known once the process runs
        self.endpoint: StageEndpoint | None = None  # known once the stage listens
        self._actor = actor
        self._timeout = timeout
        self._marked_dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @classmethod
    def start(
        cls, options: dict[str, Any], target: TargetOptions, pipeline: PipelineOptions, bundle: Bundle
    ) -> StageHandle:
        """Start an actor in ``bundle`` with Ray's ``options``; returns at once."""
        placed = PlacementGroupSchedulingStrategy(bundle.group, placement_group_bundle_index=bundle.index)
        remote = ray.remote(StageActor).options(
            max_restarts=0, max_concurrency=CALLS, scheduling_strategy=placed, **options
        )
        actor = remote.remote(target, pipeline.threads, pipeline.transport, pipeline.logs, pipeline.gpus)
        return cls(actor, "a stage's process", bundle, pipeline.stage_timeout)

    async def arrive(self) -> None:
        """Wait until its process runs and has imported its libraries; raises TargetLostError when it died."""
        if self.identity is None:
            try:
                self.identity = await self._actor.identity.remote()
            except RayError as error:
                raise self._not_up(error) from error
            self.seen = time.monotonic()

    async def prepare(self) -> None:
        """Let it load what all stages need; raises TargetLostError when that fails."""
        try:
            await self._await_with_pings(self._actor.prepare.remote())
        except (RayError, TimeoutError) as error:
            raise self._not_up(error) from error

    async def room(self) -> StageRoom:
        """Its memory and numerics.

        Raises:
            TargetLostError: the stage died or hangs.
            SpectraError: as ``StageActor.room``.
        """
        room: StageRoom = await self._answer(self._actor.room.remote())
        return room

    async def plan(self, rooms: list[StageRoom]) -> StagePlan:
        """Let this stage describe and split the target for all stages, whose rooms are these.

        Raises:
            TargetLostError: the stage died or hangs.
            SpectraError: as ``plan_stages``.
        """
        plan: StagePlan = await self._answer(self._actor.plan.remote(rooms))
        return plan

    async def _answer(self, reference: Any) -> Any:
        try:
            return await self._await_with_pings(reference)
        except (RayError, TimeoutError) as error:
            if isinstance(error, RayTaskError) and isinstance(error.cause, SpectraError):
                raise error.cause from error
            raise self._not_up(error) from error

    async def come_up(self, number: int, secret: bytes, plan: StagePlan) -> Loaded:
        """Let it become process ``number`` of the plan, a rank of a stage: load its part and listen.

        Raises:
            TargetLostError: the stage died, hangs, or could not load; the message says why.
        """
        stage, rank = divmod(number, plan.tensor_parallel)
        layers = plan.ranges[stage]
        of_ranks = f", rank {rank} of {plan.tensor_parallel}" if plan.tensor_parallel > 1 else ""
        self.name = f"stage {stage} of {len(plan.ranges)}{of_ranks} (layers {layers.first} to {layers.last - 1})"
        await self.arrive()
        try:
            loaded: Loaded = await self._await_with_pings(self._actor.load.remote(plan, number))
            self.endpoint = await self._actor.listen.remote(secret)
        except (RayError, TimeoutError) as error:
            raise self._not_up(error) from error
        return loaded

    async def _await_with_pings(self, reference: Any) -> Any:
        """Wait for an answer that may take minutes, as long as the process answers pings; raises as ``pulse``."""
        answer = asyncio.ensure_future(reference)
        try:
            while not (await asyncio.wait((answer,), timeout=PING_EVERY_S))[0]:
                await self.pulse(max(LOADING_S, self._timeout))
            return answer.result()
        finally:
            answer.cancel()

    def _not_up(self, error: BaseException) -> TargetLostError:
        where = "" if self.identity is None else f" on {self.identity.ip}"
        return TargetLostError(f"{self.name}{where} could not come up: {reason_of(error)}")

    async def serve(self, next_address: str | None, rows_address: str, ranks: tuple[str, ...] = ()) -> None:
        """Connect it to neighbours and followers, and let it run; raises RayError or TimeoutError when it is lost."""
        serving = self._actor.serve.remote(next_address, rows_address, ranks)
        await asyncio.wait_for(serving, max(SERVE_S, self._timeout))

    async def pulse(self, within: float | None = None) -> Pulse:
        """Ping the stage.

        Raises:
            RayError: the stage is dead, or its loop has ended.
            TimeoutError: no answer came within ``within`` seconds (default: the timeout of a ping).
            ConfigError: the stage shares no transport with a neighbour, nor would a replacement.
        """
        try:
            pulse: Pulse = await asyncio.wait_for(self._actor.ping.remote(), within or self._timeout)
        except RayError as error:
            _raise_if_fatal(error)
            raise
        self.seen = time.monotonic()
        return pulse

    def mark_dead(self, reason: str) -> None:
        if not self._marked_dead.done():
            self._marked_dead.set_result(reason)

    async def lost(self) -> str:
        """Wait until the stage dies, hangs, loses its loop or is marked dead; returns the reason.

        Raises:
            ConfigError: as ``pulse``.
        """
        held = asyncio.ensure_future(self._actor.hold.remote())
        try:
            while True:
                done, _ = await asyncio.wait(
                    (held, self._marked_dead), timeout=PING_EVERY_S, return_when=asyncio.FIRST_COMPLETED
                )
                if self._marked_dead in done:
                    return self._marked_dead.result()
                if held in done:
                    return await _reason(held)
                if reason := await self._find_fault():
                    return reason
        finally:
            held.cancel()

    async def _find_fault(self) -> str:
        """Why the stage is lost, or "". A ping has two attempts, because this process itself may have been blocked."""
        for within in (0.8 * self._timeout, 0.2 * self._timeout):
            try:
                await self.pulse(within)
                return ""
            except TimeoutError:
                continue
            except RayError as error:
                return reason_of(error)
        return f"it left pings unanswered for {self._timeout:g} s"

    async def end(self) -> None:
        """Send SIGKILL, which also ends a stopped process (Ray alone would take five seconds); then tell Ray."""
        if self.identity is not None:
            # The process of a lost node cannot be killed; it is gone.
            with contextlib.suppress(RayError, TimeoutError):
                await asyncio.wait_for(_end(self.identity), KILL_S)
        ray.kill(self._actor)

    async def retire(self) -> None:
        """Let a replaced stage clean up, then end it."""
        with contextlib.suppress(RayError, TimeoutError):
            await asyncio.wait_for(self._actor.leave.remote(), LEAVE_S)
        await self.end()

    def leave(self) -> Any:
        """Ask the stage to clean up; returns Ray's reference of the answer."""
        return self._actor.leave.remote()

    def kill(self) -> None:
        """Kill the actor through Ray without waiting; a process that SIGSTOP has stopped dies after five seconds."""
        ray.kill(self._actor)


def reason_of(error: BaseException) -> str:
    """The reason of a failed call in one line: the exception raised in the stage, or how its process died."""
    if isinstance(error, RayTaskError):
        cause: Any = error.cause
        text = str(cause) if isinstance(cause, SpectraError) else f"{type(cause).__name__}: {cause}"
        return _line(text)
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return _line(f"{type(error).__name__}: {error}")


def _line(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= MAX_REASON else f"{joined[:MAX_REASON]} ..."


async def _reason(held: asyncio.Future[Any]) -> str:
    try:
        return str(await held)
    except RayError as error:
        _raise_if_fatal(error)
        return reason_of(error)


def _raise_if_fatal(error: RayError) -> None:
    """Raise a ConfigError that Ray has wrapped."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, ConfigError):
        raise ConfigError(str(error.cause)) from error


async def _end(process: ProcessIdentity) -> None:
    if process.node == ray.get_runtime_context().get_node_id():
        kill_here(process)
        return
    there = NodeAffinitySchedulingStrategy(process.node, soft=False)
    await ray.remote(kill_here).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(process)
