"""The replayed target answers like the model, streams stay busy, and every cell gets its turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.never_slower import __main__ as never_slower
from benchmarks.never_slower.cells import AUTO, CPU, NONE, Cell, CellRecord
from benchmarks.never_slower.engines import VirtualEngine
from benchmarks.never_slower.machines import MACHINES, simulated_costs
from benchmarks.never_slower.record_file import CellRecordFile
from benchmarks.never_slower.streams import MethodRun, StreamWorkload
from benchmarks.support.recording import TextArchive, TextJob
from benchmarks.support.replay import EndIndex, RecordedRows, ReplayedTarget
from engine.loop import Engine
from engine.request import Request
from engine.scheduling.scheduler import SchedulerOptions
from engine.step import Step, StepResult
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


class ComparedTargets:
    """A model and a replay that get the same steps; counts the rows that they read back and that agree."""

    def __init__(self, model: LocalTarget, replayed: ReplayedTarget) -> None:
        self.info = model.info
        self._model, self._replayed = model, replayed
        self.n_rows = self.n_prompt_rows = self.n_off_text = 0

    def step(self, step: Step) -> StepResult:
        computed, replayed = self._model.step(step), self._replayed.step(step)
        for work, ours, theirs in zip(step.work, replayed.results, computed.results, strict=True):
            assert (ours.tokens, ours.accepted) == (theirs.tokens, theirs.accepted)
            assert list(ours.top_ids.nodes) == list(theirs.top_ids.nodes)
            if theirs.prompt_top_ids is not None:
                assert ours.prompt_top_ids is not None
                self.n_prompt_rows += len(theirs.prompt_top_ids)
                assert np.array_equal(ours.prompt_top_ids, theirs.prompt_top_ids)
            if len(theirs.tokens) == work.max_new:
                continue  # the text ends, so nobody reads these rows
            for row, node in enumerate(theirs.top_ids.nodes):
                if node == -1 or node in theirs.accepted:
                    self.n_rows += 1
                    assert np.array_equal(ours.top_ids.ids[row], theirs.top_ids.ids[row])
                    assert ours.top_ids.logprobs is not None
                    assert theirs.top_ids.logprobs is not None
                    assert np.allclose(ours.top_ids.logprobs[row], theirs.top_ids.logprobs[row], atol=1e-4)
                else:
                    self.n_off_text += 1
        return computed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["suffix+token-recycling", "spectra-core"])
def test_a_replay_answers_like_the_model_where_nodes_are_on_the_text(
    tiny_checkpoint: Path, archive: TextArchive, temperature: float, method: str
) -> None:
    jobs = [job for job in JOBS if job.temperature == temperature]
    model = local_target(tiny_checkpoint)
    rows = RecordedRows(archive.read(jobs), model.info.spec.vocab_size)
    replayed = ReplayedTarget(model.info, rows)
    targets = ComparedTargets(model, replayed)
    engine = Engine(targets, SpeculatorPool(), SchedulerOptions(prefix_cache=False))
    texts: dict[int, list[int]] = {}
    for number, job in enumerate(jobs):
        seq = engine.submit(Request([*job.prompt], job.params, method, 8))
        replayed.assign(seq, number)
        texts[seq] = []
    while engine.has_work:
        for seq, event in engine.step():
            texts[seq] += event.token_ids
    assert [[*job.prompt, *text] for job, text in zip(jobs, texts.values(), strict=True)] == rows.texts
    assert targets.n_off_text > 0
    if method == "suffix+token-recycling":
        assert targets.n_prompt_rows == sum(len(job.prompt) for job in jobs)
        assert targets.n_rows > 30


def test_an_index_finds_the_nearest_place() -> None:
    chance = np.random.default_rng(0)
    for _ in range(50):
        keys = chance.integers(0, 6, chance.integers(1, 30)).astype(np.int64)
        wanted = chance.integers(-1, 8, 40).astype(np.int64)
        near = chance.integers(0, len(keys), 40).astype(np.int64)
        distances = [
            [abs(place - n) for place in np.flatnonzero(keys == key)] for key, n in zip(wanted, near, strict=True)
        ]
        found = EndIndex(keys).find(wanted, near).tolist()
        for place, key, n, some in zip(found, wanted, near, distances, strict=True):
            assert (place == -1) == (not some)
            assert not some or (keys[place] == key and abs(place - n) == min(some))


@pytest.mark.parametrize("method", [NONE, "suffix+token-recycling@4"])
def test_a_stream_submits_the_next_text_at_once_until_all_measured_texts_are_complete(
    tiny_checkpoint: Path, archive: TextArchive, method: str
) -> None:
    options = TargetOptions(str(tiny_checkpoint))
    info = describe_target(replace(options, kv_bytes=1 << 24), tiny_checkpoint)
    jobs = JOBS[:3]
    target = ReplayedTarget(info, RecordedRows(archive.read(jobs), info.spec.vocab_size))
    machine = MACHINES[GPU]
    costs = simulated_costs(machine, info)
    limits = SchedulerOptions(max_sequences=2, max_waiting=2, n_micro_batches=4, prefix_cache=False)
    engine = VirtualEngine(target, SpeculatorPool(), limits, costs, machine)
    cell = Cell(GPU, "edits", 0.0, 2)
    run = MethodRun(cell, 0, method, engine, StreamWorkload(jobs, 1, 4, 8), target.assign)
    while not run.is_done:
        run.advance(0.0001)
        assert len(engine.scheduler.sequences) + engine.scheduler.n_waiting >= 1
    run.close()
    record = run.record()
    assert run.texts == [tuple(target._rows.texts[i][len(jobs[i].prompt) :]) for i in (1, 2, 0, 1)]
    assert all(0 < first < seconds for first, seconds in zip(record.first_s, record.seconds, strict=True))
    step_s = machine.profile.base_s * machine.profile.stages
    assert sum(record.seconds) >= step_s * (record.forwards + len(record.seconds))


def record_of(cell: Cell, turn: int, method: str, seconds: Sequence[float]) -> CellRecord:
    return CellRecord(cell, turn, method, list(seconds), [0.0] * len(seconds), 8, 7, 7, 0, 0.1, 1.0, 1.0, "a", 0, 0.0)


def test_simulated_cells_come_first_and_the_cpu_after_its_share_of_the_time() -> None:
    file = CellRecordFile(None, {})
    gpu, cpu = Cell(GPU, "edits", 0.0, 16), Cell(CPU, "edits", 0.0, 1)
    fixed = {GPU: ("pld",), CPU: ("pld", "suffix")}
    assert never_slower.next_turn([cpu, gpu], file, fixed, 0.1) == (gpu, [AUTO, NONE, "pld"])
    assert never_slower.next_turn([cpu, gpu], file, fixed, 0.9) == (cpu, [AUTO, NONE, "pld", "suffix"])
    for turn in range(2):
        file.append(
            {
                method: record_of(gpu, turn, method, [seconds, seconds])
                for method, seconds in ((AUTO, 1.0), (NONE, 1.001), ("pld", 2.0))
            }
        )
    assert never_slower.next_turn([cpu, gpu], file, fixed, 0.1) == (cpu, [AUTO, NONE, "pld", "suffix"])
    noisy = Cell(GPU, "chat", 0.0, 16)
    for turn in range(2):
        file.append(
            {
                method: record_of(noisy, turn, method, [seconds, 3.0])
                for method, seconds in ((AUTO, 1.0 + turn), (NONE, 1.0), ("pld", 2.0), ("suffix", 9.0))
            }
        )
    assert never_slower.next_turn([noisy], file, fixed, 0.1) == (noisy, [AUTO, NONE, "pld"])


@pytest.mark.matrix
def test_every_cell_is_measured_once_and_texts_are_identical(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "--model",
        str(tiny_checkpoint),
        "--kinds",
        "edits",
        "--temperatures",
        "0",
        "--half",
        "1",
        "--minutes",
        "9",
    ]
    flags += ["--concurrency", "1", "--only", CPU, GPU, "--fixed", "pld", "--tokens", "8", "--cold"]
    never_slower.main([*flags, "--out", str(tmp_path)])
    cells = json.loads(capsys.readouterr().out.splitlines()[-1])["cells"]
    assert [cell["identical"] for cell in cells] == [True, True]
    assert all(cell["methods"][NONE]["tokens_per_forward"] == 1.0 for cell in cells)
    records = (tmp_path / "records.jsonl").read_bytes()
    never_slower.main([*flags, "--out", str(tmp_path), "--minutes", "0"])
    assert (tmp_path / "records.jsonl").read_bytes() == records
