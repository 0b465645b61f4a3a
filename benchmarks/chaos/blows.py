"""What is done to the processes of a server, and which process a name means; not what comes of it."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import psutil

STAGE, TARGET, ROUTER = "ray::StageActor", "ray::ServeReplica:spectra:Target", "ray::ServeReplica:spectra:Router"
INGRESS, SPECULATOR = "ray::ServeReplica:spectra:Ingress", "ray::SpeculatorActor"


@dataclass(frozen=True)
class Blow:
    """A signal to one process.

    Args:
        name: as tables show it.
        victim: beginning of the process title.
        place: which stage; of other kinds there is one.
        number: the signal.
        breaks_streams: clients lose their connections, so answers may be asked for again.
        wakes: it is sent SIGCONT when its phase ends: nobody replaces it, and nobody has to.
    """

    name: str
    victim: str
    place: int = 0
    number: signal.Signals = signal.SIGKILL
    breaks_streams: bool = False
    wakes: bool = False


def blows(stages: int) -> list[Blow]:
    """One SIGKILL of each kind of process in turn, of every stage, then stopped ones that nobody wakes."""
    kills = [Blow(f"kill stage {i}", STAGE, i) for i in range(stages)]
    return [
        *kills,
        Blow("kill target", TARGET),
        Blow("kill speculator", SPECULATOR),
        Blow("kill router", ROUTER),
        Blow("kill ingress", INGRESS, breaks_streams=True),
        Blow("stop stage", STAGE, stages // 2, signal.SIGSTOP),
        Blow("stop speculator", SPECULATOR, number=signal.SIGSTOP, wakes=True),
        Blow("stop router", ROUTER, number=signal.SIGSTOP),
    ]


def processes(root: int) -> list[psutil.Process]:
    """The server and everything it started, oldest first."""
    parent = psutil.Process(root)
    found = [parent, *parent.children(recursive=True)]
    return sorted(found, key=lambda process: process.create_time())


def title(process: psutil.Process) -> str:
    """What a process calls itself; empty when it has gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def alive(root: int, victim: str) -> list[psutil.Process]:
    """Processes of one kind that run, oldest first."""
    return [process for process in processes(root) if title(process).startswith(victim)]


def strike(root: int, blow: Blow, stages: list[int]) -> int:
    """Send the signal; returns the process id it went to. ``stages`` are the pids of the stages, first to last.

    Raises:
        RuntimeError: there is no such process.
    """
    found = stages if blow.victim == STAGE else [process.pid for process in alive(root, blow.victim)]
    if len(found) <= blow.place:
        raise RuntimeError(f"{blow.name}: {len(found)} processes are called {blow.victim}")
    os.kill(found[blow.place], blow.number)
    return found[blow.place]
