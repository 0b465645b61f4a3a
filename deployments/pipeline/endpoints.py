"""Addresses of a pipeline and its stages, and the identity by which the process of a stage is killed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import psutil

from deployments.pipeline.leadership import NO_ROUTER, RouterStatus
from deployments.pipeline.stage_reports import LoadReport, StageReplacement
from engine.errors import ConfigError
from engine.target_model.info import TargetInfo


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses of a pipeline, and what its owner reports with them."""

    first: str  # address of the first stage: steps go in here
    last: str  # address of the last stage: results come out here
    secret: bytes = field(repr=False)
    info: TargetInfo
    load: LoadReport = field(default_factory=LoadReport)  # load times of its start
    replacements: tuple[StageReplacement, ...] = ()  # the newest of its stages, oldest first
    leader: RouterStatus = NO_ROUTER  # the router that serves on it, or did last


@dataclass(frozen=True, slots=True)
class StageEndpoint:
    """The addresses of one stage."""

    node: str  # Ray's id of the node
    unix: str = ""  # for peers on the same node; "": none
    tcp: str = ""

    def seen_from(self, node: str) -> str:
        """The address for a peer on ``node``: the Unix socket on the stage's own node, TCP elsewhere; "": none."""
        return self.unix if self.unix and node == self.node else self.tcp


def neighbours(stages: Sequence[StageEndpoint]) -> list[tuple[str | None, str]]:
    """For every stage, first to last: the address of the next stage (None for the last), and its own address for the
    last stage.

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
    """A process on a node. Its start time distinguishes it from a later process with the same id."""

    node: str  # Ray's id of the node
    ip: str
    pid: int
    started: int  # milliseconds since the machine's start

    def __str__(self) -> str:
        return f"process {self.pid} on {self.ip}"

    @classmethod
    def here(cls) -> ProcessIdentity:
        """The identity of the calling process, which must be one of Ray's."""
        import ray

        node, ip = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
        return cls(node, ip, os.getpid(), started_at(psutil.Process()))


def started_at(process: psutil.Process) -> int:
    """Start of a process in milliseconds since the machine's start, which never changes, unlike the time of day."""
    return round(1000 * (process.create_time() - psutil.boot_time()))


def kill_here(identity: ProcessIdentity) -> bool:
    """Send SIGKILL to a process of this node, even a stopped one; returns whether the process existed."""
    try:
        process = psutil.Process(identity.pid)
        if started_at(process) != identity.started:
            return False
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True
