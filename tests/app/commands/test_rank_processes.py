"""``spectra generate --tensor-parallel``: the text of one rank, and lost ranks, whose command ends with a message."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.errors import UnsupportedModelError
from engine.parallel import leader
from engine.parallel.leader import ParallelStage
from engine.step import Step
from engine.target_model import local_ranks
from tests.support.spectra_command import generated, run_cli
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.cluster
RANKS = ("--tensor-parallel", 2)
PROMPT = ("--prompt", "the quick brown fox and the quick brown fox", "--raw")


@contextmanager
def generating(model: Path, folder: Path, *flags: object) -> Iterator[subprocess.Popen[str]]:
    """A ``spectra generate`` of its own process group that prints its first answer."""
    # Background processes of a shell ignore SIGINT, and so would their children.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "app.cli", "generate", "--model", model, "--json"]
    command += [*RANKS, *flags]
    with (
        (folder / "err").open("w") as err,
        subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=err, text=True, start_new_session=True
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def test_the_output_is_that_of_one_rank(tiny_checkpoint: Path) -> None:
    flags = (*PROMPT, "--max-tokens", 30, "--method", "pld")
    [alone], [done] = generated(tiny_checkpoint, *flags), generated(tiny_checkpoint, *flags, *RANKS)
    changing = {"seconds"}
    assert {key: done[key] for key in done.keys() - changing} == {key: alone[key] for key in alone.keys() - changing}
    wait_until(
        lambda: not active_children()
    )  # the target is garbage: its ranks need not wait for the end of this process


@pytest.mark.parametrize(
    ("fault", "message"), [(signal.SIGKILL, "spectra: a rank of this stage is lost: "), (signal.SIGINT, "")]
)
def test_a_command_whose_rank_or_user_interrupts_it_ends_at_once(
    fault: int, message: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text((json.dumps({"prompt": "the quick brown fox"}) + "\n") * 400)
    flags = ("--prompts", prompts, "--raw", "--max-tokens", 200, "--method", "autoregressive")
    with generating(tiny_checkpoint, tmp_path, *flags) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["index"] == 0
        children = psutil.Process(process.pid).children()
        [rank] = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        if fault == signal.SIGKILL:
            rank.send_signal(fault)
        else:
            os.killpg(process.pid, fault)  # as a terminal does
        process.communicate(timeout=LIMIT_S)
    err = (tmp_path / "err").read_text()
    assert "Traceback" not in err
    assert process.returncode == (2 if message else 130)
    assert message in err, err
    assert not rank.is_running()


def test_a_stopped_rank_is_killed_with_its_command(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    admit = ParallelStage.admit

    def stop_others(stage: ParallelStage, step: Step) -> None:
        for process in active_children():
            os.kill(process.pid or 0, signal.SIGSTOP)
        admit(stage, step)

    monkeypatch.setattr(leader, "ANSWER_S", 2.0)
    monkeypatch.setattr(local_ranks, "END_S", 1.0)
    monkeypatch.setattr(ParallelStage, "admit", stop_others)
    ran = run_cli("generate", "--model", tiny_checkpoint, *PROMPT, *RANKS, "--method", "autoregressive")
    assert ran.status == 2
    assert "spectra: a rank of this stage is lost: the rank has not answered for 2 s" in ran.err
    wait_until(lambda: not active_children())


def test_a_rank_that_cannot_load_names_its_reason(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.target_model.local_ranks._run_rank", broken_rank)
    ran = run_cli("generate", "--model", tiny_checkpoint, *PROMPT, *RANKS)
    assert ran.status == 2
    assert "spectra: tensor-parallel rank 1 could not start: no such weights" in ran.err
    wait_until(lambda: not active_children())


def broken_rank(connection: Any, *arguments: Any) -> None:
    """What a rank does, with weights that it cannot load."""

    def fail(*_: object, **__: object) -> None:
        raise UnsupportedModelError("no such weights")

    local_ranks.__dict__["load_stage"] = fail
    local_ranks._run_rank(connection, *arguments)
