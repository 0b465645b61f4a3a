"""Faults: a signal to one process of a server."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks.resilience.observation import alive

# Before the first import of Ray, and for the server's Ray as well: another address or token would not find its cluster.
for name, value in {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}.items():
    os.environ.setdefault(name, value)


GCS = "--gcs-address="  # to Ray's processes


@dataclass(frozen=True)
class Fault:
    """A signal to one process.

    Args:
        name: as tables show it.
        victim: part of the server, a key of `PARTS`.
        place: which of the stages; the other parts have one process each.
        number: the signal.
        breaks_streams: clients lose their connections and ask again.
        is_resumed: SIGCONT ends the fault with its phase; no other process replaces the victim.
    """

    name: str
    victim: str
    place: int = 0
    number: signal.Signals = signal.SIGKILL
    breaks_streams: bool = False
    is_resumed: bool = False


def faults(stages: int) -> list[Fault]:
    """SIGKILL for every stage and for each other kind of process, then SIGSTOP."""
    return [
        *(Fault(f"kill stage {i}", "stages", i) for i in range(stages)),
        Fault("kill target", "target"),
        Fault("kill speculator", "speculators"),
        Fault("kill router", "router"),
        Fault("kill ingress", "ingress", breaks_streams=True),
        Fault("stop stage", "stages", stages // 2, signal.SIGSTOP),
        Fault("stop speculator", "speculators", number=signal.SIGSTOP, is_resumed=True),
        Fault("stop router", "router", number=signal.SIGSTOP),
    ]


def inject(root: int, fault: Fault, stages: list[int]) -> int:
    """Send the signal to a process of the server ``root``; returns the process id it went to.

    Args:
        root: process id of ``spectra serve``.
        fault: what to do.
        stages: process ids of the stages, first to last.

    Raises:
        RuntimeError: there is no such process.
    """
    pids = stages if fault.victim == "stages" else [process.pid for process in alive(root, fault.victim)]
    if len(pids) <= fault.place:
        raise RuntimeError(f"{fault.name}: {len(pids)} processes of {fault.victim} run")
    os.kill(pids[fault.place], fault.number)
    return pids[fault.place]


class ServerCluster:
    """The server's own Ray cluster, joined at the first question, which tells which process is which stage.

    Args:
        root: process id of ``spectra serve``; other clusters may run on this machine.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._target: Any = None

    async def stage_pids(self) -> list[int]:
        """Process ids of the stages, first to last."""
        pids: list[int] = await asyncio.to_thread(self._ask, "stage_pids")
        return pids

    async def state(self) -> dict[str, Any]:
        """Of the pipeline, as its owner tells it."""
        state: dict[str, Any] = await asyncio.to_thread(self._ask, "state")
        return state

    def _ask(self, question: str) -> Any:
        import ray
        from ray import serve

        if self._target is None:
            ray.init(self._address(), log_to_driver=False, configure_logging=False)
            self._target = serve.get_deployment_handle("Target", "spectra")
        return getattr(self._target, question).remote().result(timeout_s=60)

    def _address(self) -> str:
        """Of the cluster's GCS, as the server's processes are told it."""
        words = (word for process in psutil.Process(self._root).children(recursive=True) for word in process.cmdline())
        return next(word for word in words if word.startswith(GCS)).removeprefix(GCS)

    def leave(self) -> None:
        """Disconnect; harmless when it was never joined."""
        if self._target is not None:
            import ray

            ray.shutdown()
