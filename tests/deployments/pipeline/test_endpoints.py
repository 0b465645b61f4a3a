"""Which address a peer uses, and how a process is ended that may be stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from deployments.channels.channel import Channel
from deployments.channels.handshake import UnauthenticatedError
from deployments.pipeline.connection import Pipeline
from deployments.pipeline.endpoints import Endpoints, ProcessIdentity, StageEndpoint, kill_here, started_at
from deployments.pipeline.stage_reports import StagePlan
from deployments.stage.actor import StageActor
from engine.errors import ConfigError
from engine.model.ranges import LayerRange
from engine.step import Step
from engine.target_model.info import TargetInfo
from engine.target_model.options import TargetOptions


@pytest.mark.cluster
def test_a_stopped_process_is_killed_and_a_later_one_with_the_same_id_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        identity = ProcessIdentity("n", "127.0.0.1", process.pid, started_at(psutil.Process(process.pid)))
        assert not kill_here(replace(identity, started=identity.started - 10))
        assert process.poll() is None
        os.kill(process.pid, signal.SIGSTOP)
        assert kill_here(identity)
        assert process.wait() == -signal.SIGKILL
        assert not kill_here(identity)


def whole(info: TargetInfo) -> StagePlan:
    """All layers in one stage."""
    return StagePlan(info, (LayerRange(0, info.spec.n_layers, info.spec.n_layers),))


def actor_of(path: Path, transport: str = "auto", **options: object) -> StageActor:
    """A stage actor's plain class in this process."""
    return StageActor(TargetOptions(str(path), **options), torch.get_num_threads(), transport)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def on_node_a(monkeypatch: pytest.MonkeyPatch) -> None:
    here = ProcessIdentity("a", "127.0.0.1", os.getpid(), started_at(psutil.Process()))
    monkeypatch.setattr(ProcessIdentity, "here", classmethod(lambda cls: here))


async def test_a_stage_serves_at_both_its_addresses_and_keeps_its_socket_private(
    tiny_checkpoint: Path, info: TargetInfo
) -> None:
    actor = actor_of(tiny_checkpoint)
    assert actor.load(whole(info), 0).n_bytes > 0
    secret = b"s" * 32
    endpoint = actor.listen(secret)
    folder = Path(endpoint.unix.removeprefix("unix:")).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    actor.serve(None, endpoint.unix)
    for node, address in (("a", endpoint.unix), ("b", endpoint.tcp)):
        assert endpoint.seen_from(node) == address
        pipeline = await Pipeline.connect(Endpoints(address, address, secret, info))
        pipeline.send(Step(1, []))
        assert (await pipeline.receive()).error == ""
        pipeline.close()
        with pytest.raises((EOFError, UnauthenticatedError)):
            Channel.connect(address, b"another", "steps")
    assert actor.ping().busy == 0.0
    actor.leave()
    assert not folder.exists()
    assert "loop has ended" in actor.hold()


def test_a_stage_has_only_the_addresses_of_its_transport(tiny_checkpoint: Path, info: TargetInfo) -> None:
    both = StageEndpoint("a", "unix:/s", "tcp:10.0.0.1:5")
    assert replace(both, unix="").seen_from("a") == both.tcp
    assert replace(both, tcp="").seen_from("b") == ""
    actor = actor_of(tiny_checkpoint, "tcp")
    actor.load(whole(info), 0)
    endpoint = actor.listen(b"s" * 32)
    assert (endpoint.node, endpoint.unix, endpoint.tcp[:4]) == ("a", "", "tcp:")
    actor.leave()


def test_one_stage_plans_for_all(tiny_checkpoint: Path) -> None:
    def planned(split: str) -> StagePlan:
        return actor_of(tiny_checkpoint, stages=2, kv_bytes=1 << 22, block_size=16, split=split).plan()

    plan = planned("1,3")
    assert plan.ranges == (LayerRange(0, 1, 4), LayerRange(1, 4, 4))
    assert (plan.info.block_size, plan.info.spec.dtype) == (16, "float32")
    assert [line.partition(":")[0] for line in plan.memory] == ["layers 0 to 0", "layers 1 to 3"]
    with pytest.raises(ConfigError, match="layer_split is 1,2"):
        planned("1,2")
