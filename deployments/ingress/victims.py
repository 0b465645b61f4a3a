"""Processes of this server, as the page for operators kills them: SIGKILL, so nothing of them can prepare for it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import psutil
from ray import serve

STAGE = "stage"
TITLES = {"router": "ray::ServeReplica:{app}:Router", "speculator": "ray::SpeculatorActor"}  # beginnings
ANSWER_S = 5.0  # that the owner of the stages may take to say which processes they are

logger = logging.getLogger(__name__)


class Victims:
    """Processes that the raylet of this replica's own node has started, and no others."""

    async def kill(self, part: str, place: int) -> int | None:
        """SIGKILL to the router, to a stage by its place in the pipeline, or to a speculator actor by its age.

        Returns its process id; None if no such process runs now.
        """
        stages = await self._stages() if part == STAGE else []
        titles = dict(_titles())
        pids = stages if part == STAGE else [pid for pid, title in titles.items() if title.startswith(_of(part))]
        if place >= len(pids) or pids[place] not in titles:
            return None
        pid = pids[place]
        logger.warning("the page for operators kills %s %d, process %d", part, place, pid)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # it has just ended
            return None
        return pid

    async def _stages(self) -> list[int]:
        """Process ids of the stages, first to last; empty while their owner does not answer."""
        target = serve.get_deployment_handle("Target", serve.get_replica_context().app_name)
        try:
            async with asyncio.timeout(ANSWER_S):
                pids: list[int] = await target.stage_pids.remote()
        except Exception as error:  # of many kinds: of Ray, of Serve, of gRPC
            logger.warning("the owner of the stages does not answer", exc_info=error)
            return []
        return pids


def _of(part: str) -> str:
    return TITLES[part].format(app=serve.get_replica_context().app_name)


def _titles() -> list[tuple[int, str]]:
    """Processes that have this one's parent, oldest first, and their titles."""
    raylet = psutil.Process(os.getppid())
    found = [(process.create_time(), process.pid) for process in raylet.children()]
    return [(pid, _title(pid)) for _, pid in sorted(found)]


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # it has ended meanwhile
        return ""
