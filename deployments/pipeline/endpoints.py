"""Where a pipeline and its stages listen, and the identity by which the process of a stage can be killed for good."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import psutil

from deployments.pipeline.leadership import NO_ROUTER, RouterStatus
from deployments.pipeline.load_report import LoadReport
from deployments.pipeline.replacement import StageReplacement
from engine.errors import ConfigError
from engine.target_model.info import TargetInfo


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a pipeline listens."""

    first: str  # address of the first stage: steps go in here
    last: str  # address of the last stage: results come out here
    secret: bytes = field(repr=False)
    info: TargetInfo
    load: LoadReport = field(default_factory=LoadReport)  # what its start took
    replacements: tuple[StageReplacement, ...] = ()  # the newest of its stages, oldest first
    leader: RouterStatus = NO_ROUTER  # the router that serves on it, or did last


@dataclass(frozen=True, slots=True)
class StageEndpoint:
    """The addresses of one stage."""

    node: str  # Ray's id of the node
    unix: str = ""  # for peers on the same node; "": none
    tcp: str = ""

    def seen_from(self, node: str) -> str:
        """The address for a peer on ``node``: the Unix socket on the stage's own, TCP elsewhere; "": there is none."""
        return self.unix if self.unix and node == self.node else self.tcp


def neighbours(stages: Sequence[StageEndpoint]) -> list[tuple[str | None, str]]:
    """For every stage, first to last: the address of the stage behind it (None for the last stage), and the address
    by which the last stage reaches it.

    Raises:
        ConfigError: two of these stages cannot reach each other.
    """
    found: list[tuple[str | None, str]] = []
    for i, here in enumerate(stages):
        following = stages[i + 1].seen_from(here.node) if i + 1 < len(stages) else None
        found.append((following, here.seen_from(stages[-1].node)))
        if "" in found[-1]:
            raise ConfigError("transport is unix, but stages run on several nodes; auto and tcp work there")
    return found


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process on a node. Its start time tells it from a later process with the same id."""

    node: str  # Ray's id of the node
    ip: str
    pid: int
    started: int  # milliseconds since the machine's start

    def __str__(self) -> str:
        return f"process {self.pid} on {self.ip}"

    @classmethod
    def here(cls) -> ProcessIdentity:
        """Of the calling process, which must be one of Ray's."""
        import ray

        node, ip = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
        return cls(node, ip, os.getpid(), started_at(psutil.Process()))


def started_at(process: psutil.Process) -> int:
    """When a process began, in milliseconds since the machine's start: unlike the time of day, it never changes."""
    return round(1000 * (process.create_time() - psutil.boot_time()))


def kill_here(identity: ProcessIdentity) -> bool:
    """SIGKILL to a process of this node, stopped ones included; returns whether it was there."""
    try:
        process = psutil.Process(identity.pid)
        if started_at(process) != identity.started:
            return False
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True
