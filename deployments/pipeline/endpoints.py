"""Where a process runs, and under which identity it can be ended for good; which address reaches a stage from where."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ray

from engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Place:
    """A process on a node; with its start time its id means no other process that came later."""

    node: str  # Ray's id of the node
    ip: str
    pid: int
    started: int  # clock ticks since the machine's start

    @classmethod
    def here(cls) -> Place:
        """Of the calling process, which must be one of Ray's."""
        node, ip = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
        return cls(node, ip, os.getpid(), started_at(os.getpid()))


@dataclass(frozen=True, slots=True)
class Reach:
    """By which addresses a stage is reached."""

    node: str
    unix: str = ""  # from its own node only
    tcp: str = ""

    def seen_from(self, node: str) -> str:
        """The address for a peer on ``node``: the Unix socket on the stage's own, TCP elsewhere; "": there is none."""
        return self.unix if self.unix and node == self.node else self.tcp


def neighbours(stages: Sequence[Reach]) -> list[tuple[str | None, str]]:
    """For every stage, first to last: the address of the one behind it (None: it is the last), and by which of its own
    the last one reaches it.

    Raises:
        ConfigError: two of them have no way to each other.
    """
    found: list[tuple[str | None, str]] = []
    for i, here in enumerate(stages):
        following = stages[i + 1].seen_from(here.node) if i + 1 < len(stages) else None
        found.append((following, here.seen_from(stages[-1].node)))
        if "" in found[-1]:
            raise ConfigError("transport is unix, but stages run on several nodes; auto and tcp work there")
    return found


def end_here(place: Place) -> bool:
    """SIGKILL to a process of this node, stopped ones included; returns whether it was there."""
    try:
        if started_at(place.pid) != place.started:
            return False
        os.kill(place.pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return True


def started_at(pid: int) -> int:
    """When a process of this node began, in clock ticks; raises FileNotFoundError if it is gone."""
    # Field 22; the second one may hold blanks and brackets.
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19])
