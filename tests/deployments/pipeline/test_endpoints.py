"""Who reaches whom by which address, and how a process is ended that may be stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from deployments.pipeline.connection import Pipeline
from deployments.pipeline.endpoints import Endpoints, ProcessIdentity, StageEndpoint, kill_here, started_at
from deployments.pipeline.plan import StagePlan
from deployments.stage.actor import SOCKETS, StageActor
from deployments.transport.channel import Channel
from deployments.transport.handshake import UnauthenticatedError
from deployments.transport.socket_folder import SocketFolder
from engine.errors import ConfigError, UnsupportedModelError
from engine.model.ranges import LayerRange
from engine.step import Step
from engine.target.info import TargetInfo
from engine.target.options import TargetOptions


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def identity_of(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    return ProcessIdentity("n", "127.0.0.1", process.pid, started_at(psutil.Process(process.pid)))


def test_a_stage_is_reached_by_its_unix_socket_on_its_own_node_and_by_tcp_from_others() -> None:
    both = StageEndpoint("a", "unix:/s", "tcp:10.0.0.1:5")
    assert both.seen_from("a") == "unix:/s"
    assert both.seen_from("b") == "tcp:10.0.0.1:5"
    assert replace(both, unix="").seen_from("a") == "tcp:10.0.0.1:5"
    assert replace(both, tcp="").seen_from("b") == ""


def test_a_stopped_process_is_ended(sleeper: subprocess.Popen[bytes]) -> None:
    os.kill(sleeper.pid, signal.SIGSTOP)
    assert kill_here(identity_of(sleeper))
    assert sleeper.wait(60) == -signal.SIGKILL
    assert not kill_here(ProcessIdentity("n", "127.0.0.1", sleeper.pid, 0))


def test_a_later_process_with_the_same_id_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper)
    assert not kill_here(replace(identity, started=identity.started - 10))
    assert sleeper.poll() is None


def test_the_folder_of_a_killed_stage_is_cleared_away_by_the_next_and_a_living_ones_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory(prefix="sv-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        code = (
            "import tempfile, os; tempfile.tempdir = os.environ['WHERE']\n"
            "from deployments.transport.socket_folder import SocketFolder\n"
            f"folder = SocketFolder({SOCKETS!r}); print(folder.path, flush=True); input()"
        )
        command = [sys.executable, "-c", code]
        environment = os.environ | {"WHERE": folder}
        with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment) as process:
            assert process.stdout is not None
            theirs = Path(process.stdout.readline().strip())
            assert theirs.stat().st_mode & 0o777 == 0o700
            mine = SocketFolder(SOCKETS)
            assert theirs.is_dir()
            process.kill()
        another = SocketFolder(SOCKETS)
        assert not theirs.exists()
        assert mine.path.is_dir()
        another.remove()
        mine.remove()
        assert list(Path(folder).iterdir()) == []


def whole(info: TargetInfo) -> StagePlan:
    """All layers in one stage."""
    return StagePlan(info, (LayerRange(0, info.spec.n_layers, info.spec.n_layers),))


@pytest.fixture
def local_actor(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StageActor]:
    """A stage actor's plain class in this process, with both kinds of address."""
    here = ProcessIdentity("a", "127.0.0.1", os.getpid(), started_at(psutil.Process()))
    monkeypatch.setattr(ProcessIdentity, "here", classmethod(lambda cls: here))
    actor = StageActor(TargetOptions(str(tiny_checkpoint)), torch.get_num_threads(), "auto")
    yield actor
    actor.leave()


async def test_a_stage_serves_at_both_its_addresses_and_keeps_its_socket_private(
    local_actor: StageActor, info: TargetInfo
) -> None:
    assert local_actor.load(whole(info), 0).n_bytes > 0
    secret = b"s" * 32
    endpoint = local_actor.listen(secret)
    assert endpoint.node == "a"
    folder = Path(endpoint.unix.removeprefix("unix:")).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    local_actor.serve(None, endpoint.unix)
    for node in ("a", "b"):
        address = endpoint.seen_from(node)
        pipeline = await Pipeline.connect(Endpoints(address, address, secret, info))
        pipeline.send(Step(1, []))
        assert (await pipeline.receive()).error == ""
        pipeline.close()
        with pytest.raises((EOFError, UnauthenticatedError)):
            Channel.connect(address, b"another", "steps")
    assert local_actor.ping().busy == 0.0
    local_actor.leave()
    assert not folder.exists()
    assert "loop has ended" in local_actor.hold()


def test_one_kind_of_address_alone_where_the_transport_says_so(local_actor: StageActor, info: TargetInfo) -> None:
    local_actor.load(whole(info), 0)
    local_actor._transport = "tcp"
    endpoint = local_actor.listen(b"s" * 32)
    assert (endpoint.unix, endpoint.tcp[:4]) == ("", "tcp:")


def test_one_stage_plans_for_all(tiny_checkpoint: Path) -> None:
    path = str(tiny_checkpoint)

    def planned(split: str) -> StagePlan:
        options = TargetOptions(path, stages=2, kv_bytes=1 << 22, block_size=16, split=split)
        return StageActor(options, torch.get_num_threads(), "auto").plan()

    plan = planned("1,3")
    assert plan.ranges == (LayerRange(0, 1, 4), LayerRange(1, 4, 4))
    assert (plan.info.block_size, plan.info.spec.dtype) == (16, "float32")
    assert [line.partition(":")[0] for line in plan.memory] == ["layers 0 to 0", "layers 1 to 3"]
    with pytest.raises(ConfigError, match="layer_split is 1,2"):
        planned("1,2")


def test_a_file_cut_short_is_named(tiny_checkpoint: Path, info: TargetInfo, tmp_path: Path) -> None:
    for file in tiny_checkpoint.iterdir():
        content = file.read_bytes()
        (tmp_path / file.name).write_bytes(content[: len(content) // 2] if file.suffix == ".safetensors" else content)
    actor = StageActor(TargetOptions(str(tmp_path)), torch.get_num_threads(), "auto")
    with pytest.raises(UnsupportedModelError, match=f"{re.escape(str(tmp_path))} cannot be loaded"):
        actor.load(whole(info), 0)
