"""The stages of one pipeline, kept whole: a stage that dies or hangs is replaced in its place, the others stay loaded.

It knows when stages are lost and what then follows; not how an actor is started, pinged or killed (``stage_handle``),
nor anything of steps. A router that had connected loses its connection and asks for the endpoints again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from deployments.pipeline.connection import Endpoints
from deployments.pipeline.endpoints import Reach, neighbours
from deployments.pipeline.plan import StagePlan
from deployments.target.diagnosis import condemn_suspects
from deployments.target.stage_handle import StageHandle, reason_of
from deployments.target.warmup import pass_a_step
from engine.errors import ConfigError, TargetLostError

MAX_STARTS = 2  # of one stage within one replacement; then the pipeline is given up
WAIT_S = 30.0  # that a question for the endpoints waits for a replacement
MAX_TRIALS = 3  # of a pipeline that has just come up
LEAVE_S = 2.0  # for stages to clean up behind themselves

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True, slots=True)
class Replacement:
    """One replacement, over or given up."""

    reasons: Mapping[int, str]  # stage -> why it was lost
    seconds: float  # from its loss until the pipeline was whole
    error: str = ""  # why it was given up


class StageGroup:
    """Stages and their supervision.

    Args:
        launch: starts the actor of a stage, given its number.
        n_stages: how many there are.
        limit: seconds a replacement may take before the pipeline is given up.
    """

    def __init__(self, launch: Callable[[int], StageHandle], n_stages: int, limit: float) -> None:
        self._launch = launch
        self._limit = limit
        self._plan: StagePlan | None = None  # known once a stage has made it
        self._secret = secrets.token_bytes(32)
        self._stages = [launch(i) for i in range(n_stages)]
        self._watches: list[asyncio.Task[str]] = []
        self._whole = asyncio.Event()
        self._generation = 0
        self._failure = ""
        self._supervisor: asyncio.Task[None] | None = None
        self.replacements: list[Replacement] = []

    async def start(self) -> None:
        """Let the first stage plan, all load side by side, and connect them; supervise them from then on.

        Raises:
            TargetLostError: a stage did not come up, or passes no step on; none is left running.
            ConfigError: an option of the target is wrong, or stages cannot reach each other by the transport that was
                asked for.
            UnsupportedModelError: the checkpoint cannot be run.
        """
        try:
            await asyncio.gather(*(stage.arrive() for stage in self._stages))  # imports would disturb a measurement
            self._plan = await self._stages[0].plan()
            for i, memory in enumerate(self._plan.memory):
                _say(logging.INFO, "stage %d: %s", i, memory)
            await asyncio.gather(*(self._come_up(i) for i in range(len(self._stages))))
            if lost := await self._connect():
                raise TargetLostError("; ".join(f"{self._stages[i].name}: {why}" for i, why in lost.items()))
            await self._try_out()
        except BaseException:
            for stage in self._stages:
                stage.kill()
            raise
        self._watches = [self._watch(i) for i in range(len(self._stages))]
        self._supervisor = asyncio.create_task(self._supervise())
        self._whole.set()

    # -- questions -----------------------------------------------------------------------------------------------

    async def endpoints(self, node: str) -> Endpoints:
        """Where the whole pipeline listens, for a router on ``node``; waits for a replacement that is going on.

        Raises:
            TargetLostError: the replacement takes longer than a question can wait, or was given up.
            ConfigError: the option ``transport`` has no way to that node.
        """
        self.check()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._whole.wait(), WAIT_S)
        self.check()
        if not self._whole.is_set():
            raise TargetLostError("a stage is being replaced")
        return self._endpoints(node)

    def _endpoints(self, node: str) -> Endpoints:
        first, last = self._reach(0).seen_from(node), self._reach(-1).seen_from(node)
        if not (first and last):
            raise ConfigError(
                "transport (--transport) is unix, but the router is on another node than the first or last stage; "
                "auto and tcp work there"
            )
        return Endpoints(first, last, self._secret, self._planned.info, self._generation)

    @property
    def _planned(self) -> StagePlan:
        assert self._plan is not None, "a stage plans before any loads"
        return self._plan

    def check(self) -> None:
        """Raises TargetLostError once the pipeline is given up; not while a stage is being replaced in time."""
        if self._failure:
            raise TargetLostError(self._failure)
        if self._supervisor is not None and self._supervisor.done():
            raise TargetLostError("nobody watches the stages any more; the log says why")

    @property
    def pids(self) -> list[int]:
        """Process ids, first stage to last; those of stages that are starting are missing."""
        return [stage.place.pid for stage in self._stages if stage.place is not None]

    def state(self) -> dict[str, Any]:
        """For operators: every stage's place, and the newest replacement."""
        last = self.replacements[-1] if self.replacements else None
        return {
            "whole": self._whole.is_set(),
            "generation": self._generation,
            "stages": [
                {"name": stage.name, "pid": place.pid, "node": place.node, "ip": place.ip}
                for stage in self._stages
                if (place := stage.place) is not None
            ],
            "replacements": len(self.replacements),
            "last_replacement": None
            if last is None
            else {"reasons": dict(last.reasons), "seconds": last.seconds, "error": last.error},
        }

    async def suspect(self, reason: str) -> None:
        """Somebody waits for this pipeline: condemn the stages that do not answer, or else the one that is stuck."""
        if not self._whole.is_set():
            return
        await condemn_suspects(list(self._stages), reason)

    # -- supervision ---------------------------------------------------------------------------------------------

    def _watch(self, i: int) -> asyncio.Task[str]:
        return asyncio.create_task(self._stages[i].lost())

    def _found_lost(self) -> dict[int, str]:
        return {i: _result(watch) for i, watch in enumerate(self._watches) if watch.done()}

    async def _supervise(self) -> None:
        while True:
            await asyncio.wait(self._watches, return_when=asyncio.FIRST_COMPLETED)
            self._whole.clear()
            began, reasons = time.monotonic(), self._found_lost()
            try:
                async with asyncio.timeout(self._limit):
                    await self._mend(reasons)
            except Exception as error:  # whatever it is, Serve can still replace the whole
                slow = isinstance(error, TimeoutError)
                why = f"it took longer than {self._limit:g} s" if slow else f"{type(error).__name__}: {error}"
                await self._give_up(Replacement(reasons, time.monotonic() - began, why))
                return
            self._note(Replacement(reasons, time.monotonic() - began))
            self._whole.set()

    async def _mend(self, reasons: dict[int, str]) -> None:
        """Replace lost stages, those that are lost meanwhile included, and connect all; ``reasons`` grows."""
        starts: Counter[int] = Counter()
        lost = dict(reasons)
        while lost:
            self._check_links()
            for i, why in lost.items():
                _say(logging.WARNING, "%s is lost and will be replaced: %s", self._stages[i].name, why)
                reasons.setdefault(i, why)
            starts.update(lost.keys())
            if max(starts.values()) > MAX_STARTS:
                raise TargetLostError("; ".join(f"{self._stages[i].name}: {why}" for i, why in lost.items()))
            failed = dict(zip(lost, await asyncio.gather(*(self._renew(i) for i in lost)), strict=True))
            lost = self._found_lost() | {i: why for i, why in failed.items() if why}
            if not lost:
                lost = await self._connect()

    def _check_links(self) -> None:
        """Raises ConfigError when stages can never be linked as they were told to be: replacing any is in vain."""
        for watch in self._watches:
            error = watch.exception() if watch.done() and not watch.cancelled() else None
            if isinstance(error, ConfigError):
                raise error

    async def _try_out(self) -> None:
        """A step through all stages: what keeps links from being built shows now, and not with every connection."""
        for left in reversed(range(MAX_TRIALS)):
            try:
                await pass_a_step(self._endpoints(self._reach(0).node))
                return
            except TargetLostError as error:
                pulses = await asyncio.gather(*(stage.pulse() for stage in self._stages), return_exceptions=True)
                for pulse in pulses:
                    if isinstance(pulse, ConfigError):
                        raise pulse from error
                if not left:
                    raise TargetLostError(f"the stages pass no step on; their logs say why: {error}") from error

    async def _renew(self, i: int) -> str:
        """A new actor in a lost one's place; returns why it did not come up, if so."""
        self._watches[i].cancel()
        await self._stages[i].end()
        self._stages[i] = self._launch(i)
        try:
            await self._come_up(i)
        except TargetLostError as error:
            self._watches[i] = asyncio.create_task(_known(str(error)))
            return str(error)
        self._watches[i] = self._watch(i)
        return ""

    async def _come_up(self, i: int) -> None:
        stage = self._stages[i]
        loaded = await stage.come_up(self._secret, self._planned)
        assert stage.place is not None
        _say(
            logging.INFO,
            "%s loaded in %.1f s, %.2f GiB, process %d on %s",
            stage.name,
            loaded.seconds,
            loaded.n_bytes / (1 << 30),
            stage.place.pid,
            stage.place.ip,
        )

    async def _connect(self) -> dict[int, str]:
        """Tell every stage its neighbours; what was in flight is dropped. Returns who was lost over it, and why."""
        self._generation += 1
        known = zip(self._stages, neighbours([self._reach(i) for i in range(len(self._stages))]), strict=True)
        calls = [stage.serve(following, rows) for stage, (following, rows) in known]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return {i: reason_of(answer) for i, answer in enumerate(answers) if isinstance(answer, BaseException)}

    def _reach(self, i: int) -> Reach:
        reach = self._stages[i].reach
        assert reach is not None, "a stage listens before it is connected"
        return reach

    def _note(self, replacement: Replacement) -> None:
        names = ", ".join(self._stages[i].name for i in replacement.reasons)
        _say(logging.WARNING, "%s replaced within %.2f s of the loss", names, replacement.seconds)
        self.replacements.append(replacement)

    async def _give_up(self, replacement: Replacement) -> None:
        self.replacements.append(replacement)
        names = ", ".join(self._stages[i].name for i in replacement.reasons)
        self._failure = f"{names} could not be replaced: {replacement.error}"
        _say(logging.ERROR, "%s; the whole pipeline has to be", self._failure)
        await self._end()

    # -- the end -------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*(stage.end() for stage in self._stages), return_exceptions=True)

    def close(self) -> None:
        """End the stages in good order; blocks, for two seconds at most."""
        for task in (self._supervisor, *self._watches):
            if task is not None:
                task.cancel()
        with contextlib.suppress(RayError):
            ray.wait([stage.leave() for stage in self._stages], num_returns=len(self._stages), timeout=LEAVE_S)
        for stage in self._stages:
            with contextlib.suppress(RayError, ValueError):
                stage.kill()


def _say(level: int, message: str, *values: object) -> None:
    """Log at once: for speed, Serve's handlers keep lines back until there are many, or an error."""
    logger.log(level, message, *values)
    for handler in logger.handlers:
        handler.flush()


def _result(watch: asyncio.Task[str]) -> str:
    """Why a stage was lost; a watch that failed is a stage that nobody watches."""
    error = watch.exception()
    if isinstance(error, ConfigError):
        return str(error)
    return watch.result() if error is None else f"its watch failed: {type(error).__name__}: {error}"


async def _known(reason: str) -> str:
    return reason
