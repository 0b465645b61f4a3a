"""Kills processes of this server with SIGKILL for the operators' page; the process gets no chance to prepare."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import psutil
from ray import serve

STAGE = "stage"
TITLES = {  # prefixes
    "router": "ray::ServeReplica:{app}:Router",
    "ingress": "ray::ServeReplica:{app}:Ingress",
    "keeper": "ray::ServeReplica:{app}:AnswerKeeper",
    "speculator": "ray::SpeculatorActor",
}
ANSWER_S = 5.0  # timeout of the target's answer

logger = logging.getLogger(__name__)


class ProcessKiller:
    """Kills processes that the raylet of this node has started, and no others."""

    async def kill(self, part: str, place: int) -> int | None:
        """Kill a replica, the stage at ``place`` in its pipeline, or the speculator actor at ``place`` by age.

        Returns the process id, unless the process is this one; None if no such process runs.
        """
        stages = await self._find_stages() if part == STAGE else []
        titles = dict(_list_titles())  # after the wait: a process that has ended must not be killed by its old id
        if part == STAGE:
            pids = stages
        else:
            prefix = TITLES[part].format(app=serve.get_replica_context().app_name)
            pids = [pid for pid, title in titles.items() if title.startswith(prefix)]
        if place >= len(pids) or pids[place] not in titles:
            return None
        pid = pids[place]
        logger.warning("an operator kills %s %d, process %d", part, place, pid)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # it has just ended
            return None
        return pid

    async def _find_stages(self) -> list[int]:
        """Process ids of the stages, first to last; empty if the target does not answer."""
        target = serve.get_deployment_handle("Target", serve.get_replica_context().app_name)
        try:
            async with asyncio.timeout(ANSWER_S):
                pids: list[int] = await target.stage_pids.remote()
        except Exception as error:  # of Ray, Serve or gRPC
            logger.warning("the target does not answer which processes run its stages", exc_info=error)
            return []
        return pids


def _list_titles() -> list[tuple[int, str]]:
    """Ids and titles of the raylet's child processes, oldest first."""
    raylet = psutil.Process(os.getppid())
    found = [(process.create_time(), process.pid) for process in raylet.children()]
    return [(pid, _read_title(pid)) for _, pid in sorted(found)]


def _read_title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # it has ended meanwhile
        return ""
