"""A real server whose stages and target are killed and stopped: what dies is replaced, and nothing else is.

Its last stage has a trained drafter, which loses what it knew of the texts with the stage.
"""

from __future__ import annotations

import json
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file, save_file

from engine.drafter.checkpoint.write import write_drafter
from engine.model.loader import load_spec
from tests.support.served_drafters import drafter_spec, random_checkpoint
from tests.support.server_process import READY_S, Server, Stream, check_stopped, running

pytestmark = pytest.mark.cluster

SEEDED: dict[str, Any] = {"max_tokens": 600, "temperature": 0.8, "seed": 8, "ignore_eos": True}
FLAGS = ("--name", "tiny", "--kv-gib", "0.02", "--max-sequences", "4", "--max-waiting", "8", "--grace", "0.2")
STAGE, TARGET = "ray::StageActor", "ray::ServeReplica:spectra:Target"


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    drafter, spec = tmp_path_factory.mktemp("drafter"), load_spec(tiny_checkpoint)
    write_drafter(drafter, random_checkpoint(drafter_spec("p-eagle", spec)), spec)
    flags = (*FLAGS, "--stages", "3", "--stage-timeout", "10", "--drafter", str(drafter))
    with running(tiny_checkpoint, flags) as started:
        yield started


@pytest.fixture(scope="module")
def wanted(server: Server) -> list[int]:
    """The undisturbed text."""
    return server.token_ids(**SEEDED)


def alive(server: Server, title: str) -> list[psutil.Process]:
    """Processes of one kind, oldest first."""
    found = []
    for process in server.processes():
        try:
            if " ".join(process.cmdline()).startswith(title) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return sorted(found, key=lambda process: process.create_time())


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + 120
    while left := [process.pid for process in processes if not is_gone(process)]:
        assert time.monotonic() < deadline, f"orphans: {left}"
        time.sleep(0.05)


def streams(server: Server) -> list[Stream]:
    """Two seeded streams in full flow."""
    started = [Stream(server, **SEEDED), Stream(server, **SEEDED, speculative={"method": "pld+p-eagle"})]
    for stream in started:
        stream.until(50)
    return started


def strike(server: Server, wanted: list[int], number: signal.Signals) -> None:
    """One stage, whichever: texts stay what they were, and only what was struck is new."""
    (target,), (victim, *others) = alive(server, TARGET), alive(server, STAGE)
    lost_before = server.health()["pipelines_lost"]
    running = streams(server)
    victim.send_signal(number)
    assert [stream.all_ids() for stream in running] == [wanted, wanted]
    wait_until_gone([victim])
    after = alive(server, STAGE)
    assert len(after) == len(others) + 1
    assert [process for process in after if process in others] == others
    assert alive(server, TARGET) == [target]
    assert server.settled()["pipelines_lost"] > lost_before


def check_log(server: Server) -> None:
    """Assert that the log says which stage was lost, why and for how long."""
    logs = "".join(log.read_text() for log in server.folder.glob("ray/session_*/logs/serve/*Target*.log"))
    lost = [line for line in logs.splitlines() if "is lost and will be replaced: ActorDiedError" in line]
    assert lost
    assert all(re.search(r"stage [0-2] of 3 \(layers \d to \d\)", line) for line in lost)
    assert [line for line in logs.splitlines() if "replaced within" in line and "of the loss" in line]


def test_the_drafter_drafts_and_changes_no_text(server: Server, wanted: list[int]) -> None:
    for fields in ({"method": "p-eagle"}, {"method": "auto"}):
        answer = server.complete(return_token_ids=True, speculative=fields, **SEEDED).json()
        assert answer["choices"][0]["token_ids"] == wanted
        sources = answer["metrics"]["speculative_decoding"]["by_source"]
        assert fields["method"] == "auto" or sources["p-eagle"]["drafted"] > 0


def test_a_killed_stage_alone_is_replaced_and_streams_go_on_with_their_text(server: Server, wanted: list[int]) -> None:
    strike(server, wanted, signal.SIGKILL)  # each place: test_worker, without Ray; two at once: below
    check_log(server)


def test_a_stopped_stage_is_killed_and_replaced_alone(server: Server, wanted: list[int]) -> None:
    strike(server, wanted, signal.SIGSTOP)  # each place: test_hung_stages, without Ray
    assert server.token_ids(**SEEDED) == wanted


def test_two_stages_killed_at_once_are_both_replaced(server: Server, wanted: list[int]) -> None:
    target, victims = alive(server, TARGET), alive(server, STAGE)[-2:]
    running = streams(server)
    for victim in victims:
        victim.kill()
    assert [stream.all_ids() for stream in running] == [wanted, wanted]
    wait_until_gone(victims)
    assert alive(server, TARGET) == target
    server.settled()


def test_a_killed_target_leaves_no_orphans_even_of_a_stopped_stage(server: Server, wanted: list[int]) -> None:
    (target,), stages = alive(server, TARGET), alive(server, STAGE)
    running = streams(server)
    stages[-1].send_signal(signal.SIGSTOP)
    target.kill()
    assert [stream.all_ids() for stream in running] == [wanted, wanted]
    wait_until_gone([target, *stages])
    assert len(alive(server, STAGE)) == len(stages)
    server.settled()


def test_a_stopped_target_is_replaced_with_its_stages_and_texts_stay(server: Server, wanted: list[int]) -> None:
    (target,), stages = alive(server, TARGET), alive(server, STAGE)
    running = streams(server)
    target.send_signal(signal.SIGSTOP)
    assert [stream.all_ids() for stream in running] == [wanted, wanted]
    deadline = time.monotonic() + READY_S
    while not is_gone(target):
        assert time.monotonic() < deadline, "the stopped replica stays"
        time.sleep(0.2)
    wait_until_gone(stages)
    assert server.token_ids(**SEEDED) == wanted
    server.settled()


def test_streams_that_outlast_the_grace_period_end_with_an_error_event_and_nothing_is_left(server: Server) -> None:
    streams = [Stream(server, max_tokens=900, ignore_eos=True, seed=seed) for seed in (4, 5)]
    for stream in streams:
        stream.until(5)
    processes = server.processes()
    server.process.send_signal(signal.SIGINT)
    for stream in streams:
        stream.join()
        assert len(stream.token_ids) < 900
        assert [error["code"] for error in stream.errors] == ["target_lost"]
        assert "shutting down" in stream.errors[0]["message"]
        assert stream.ended_with.startswith('data: {"error"')
    check_stopped(server, processes)


def without_a_file(checkpoint: Path, folder: Path) -> str:
    """The checkpoint in two files, the second of which is missing; returns its name."""
    for file in checkpoint.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(checkpoint / "model.safetensors")
    ours, missing = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    files = {name: missing if ".layers.3." in name else ours for name in tensors}
    save_file({name: tensor for name, tensor in tensors.items() if files[name] == ours}, folder / ours)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return missing


def test_a_checkpoint_that_lacks_a_file_is_one_clear_line_before_anything_starts(tiny_checkpoint: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sv-") as folder:
        broken = Path(folder) / "broken"
        broken.mkdir()
        missing = without_a_file(tiny_checkpoint, broken)
        server = Server(broken, Path(folder), (*FLAGS, "--stages", "2"))
        try:
            assert server.process.wait(READY_S) == 2
            assert server.first_line == ""
            assert f"lacks the file {missing!r}" in server.log.read_text().splitlines()[-1]
            assert not sorted(Path(folder).rglob("session_*"))  # no Ray was started
        finally:
            server.close()
