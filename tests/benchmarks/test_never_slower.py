"""Streams stay busy, and every cell gets its turns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.never_slower import __main__ as never_slower
from benchmarks.never_slower.cells import AUTO, CPU, NONE, Cell, CellRecord, CellTurn
from benchmarks.never_slower.engines import VirtualEngine
from benchmarks.never_slower.machines import MACHINES, simulated_costs
from benchmarks.never_slower.streams import MethodRun, StreamWorkload
from benchmarks.support.path_scorer import PathScorer, RecordedRows
from benchmarks.support.prompt_sets import KINDS
from benchmarks.support.recording import TextArchive, TextJob
from benchmarks.support.replay import RecordedTarget
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.loading import describe_target
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from speculators.pool import SpeculatorPool

GPU = "70b-h100x4"
JOBS = [
    TextJob(tuple(range(5 + i, 40 + 9 * i)), 1 + i, temperature, 24, ()) for temperature in (0.0, 1.0) for i in range(3)
]


@pytest.fixture(scope="module")
def archive(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> TextArchive:
    archive = TextArchive(tmp_path_factory.mktemp("texts"), "tiny")
    archive.record(local_target(tiny_checkpoint), JOBS)
    assert archive.missing(JOBS) == []
    return archive


def local_target(path: Path) -> LocalTarget:
    options = TargetOptions(str(path))
    return LocalTarget.load(replace(options, kv_bytes=1 << 24), path)


@pytest.mark.parametrize("method", [NONE, "suffix+token-recycling@4"])
def test_a_stream_submits_the_next_text_at_once_until_all_measured_texts_are_complete(
    tiny_checkpoint: Path, archive: TextArchive, method: str
) -> None:
    options = TargetOptions(str(tiny_checkpoint))
    info = describe_target(replace(options, kv_bytes=1 << 24), tiny_checkpoint)
    jobs = JOBS[:3]
    rows = RecordedRows(archive.read(jobs))
    scorer = PathScorer(lambda: local_target(tiny_checkpoint), rows, info.block_size)
    target = RecordedTarget(info, rows, scorer)
    machine = MACHINES[GPU]
    costs = simulated_costs(machine, info)
    limits = SchedulerOptions(max_sequences=2, max_waiting=2, n_micro_batches=4, prefix_cache=False)
    engine = VirtualEngine(target, SpeculatorPool(), limits, costs, machine)
    run = MethodRun(2, method, engine, StreamWorkload(jobs, 1, 4, 8), target.assign)
    while not run.is_done:
        run.advance(0.0001)
        assert len(engine.scheduler.sequences) + engine.scheduler.n_waiting >= 1
    run.close()
    record = run.record()
    assert run.texts == [tuple(rows.texts[i][len(jobs[i].prompt) :]) for i in (1, 2, 0, 1)]
    assert all(0 < first < seconds for first, seconds in zip(record.first_s, record.seconds, strict=True))
    step_s = machine.profile.base_s * machine.profile.stages
    assert sum(record.seconds) >= step_s * (record.forwards + len(record.seconds))


def turn_of(cell: Cell, number: int, seconds: Mapping[str, Sequence[float]]) -> CellTurn:
    runs = {
        method: CellRecord(list(some), [0.0] * len(some), 8, 7, 7, 0, 0.1, "a", 0) for method, some in seconds.items()
    }
    return CellTurn(cell, number, runs)


def test_simulated_cells_come_first_and_the_cpu_after_its_share_of_the_time() -> None:
    done: list[CellTurn] = []
    gpu, cpu = Cell(GPU, "edits", 0.0, 16), Cell(CPU, "edits", 0.0, 1)
    fixed = {GPU: ("pld",), CPU: ("pld", "suffix")}
    assert never_slower.next_turn([cpu, gpu], done, fixed, 0.1) == (gpu, [AUTO, NONE, "pld"])
    assert never_slower.next_turn([cpu, gpu], done, fixed, 0.9) == (cpu, [AUTO, NONE, "pld", "suffix"])
    times = {AUTO: [1.0, 1.0], NONE: [1.001, 1.001], "pld": [2.0, 2.0]}
    done += [turn_of(gpu, turn, times) for turn in range(2)]
    assert never_slower.next_turn([cpu, gpu], done, fixed, 0.1) == (cpu, [AUTO, NONE, "pld", "suffix"])
    noisy = Cell(GPU, "chat", 0.0, 16)
    for turn in range(2):
        seconds = {AUTO: 1.0 + turn, NONE: 1.0, "pld": 2.0, "suffix": 9.0}
        done.append(turn_of(noisy, turn, {method: [one, 3.0] for method, one in seconds.items()}))
    assert never_slower.next_turn([noisy], done, fixed, 0.1) == (noisy, [AUTO, NONE, "pld"])


@pytest.mark.matrix
def test_every_cell_is_measured_once_and_texts_are_identical(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"question_id": i, "turns": [f"def twice_{i}(x):"]}) for i in range(6)]
    (tmp_path / KINDS["edits"].file).write_text("\n".join(lines))
    flags = ["--model", str(tiny_checkpoint), "--prompts", str(tmp_path), "--kinds", "edits", "--half", "1"]
    flags += ["--temperatures", "0", "--concurrency", "1", "--only", CPU, GPU, "--fixed", "pld", "--tokens", "8"]
    flags += ["--cold", "--out", str(tmp_path)]
    never_slower.main([*flags, "--minutes", "9"])
    cells = json.loads(capsys.readouterr().out.splitlines()[-1])["cells"]
    assert [cell["identical"] for cell in cells] == [True, True]
    assert all(cell["methods"][NONE]["tokens_per_forward"] == 1.0 for cell in cells)
    records = (tmp_path / "records.jsonl").read_bytes()
    never_slower.main([*flags, "--minutes", "0"])
    assert (tmp_path / "records.jsonl").read_bytes() == records
