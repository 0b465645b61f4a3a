"""Tokens per forward on a replay are those of the model, a stopped run continues, and intervals are about texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as replace_record

from benchmarks.acceptance import __main__ as acceptance
from benchmarks.acceptance.figures import row_figures
from benchmarks.acceptance.report import Measurement, along_text, report
from benchmarks.acceptance.runs import AcceptanceRow, AcceptanceRun, RowRecord, run_texts, with_settings
from benchmarks.support.path_scorer import PathScorer, RecordedRows
from benchmarks.support.prompt_sets import KINDS
from benchmarks.support.recording import TextArchive, TextJob
from benchmarks.support.replay import RecordedTarget
from engine.step import Step, StepResult
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from speculators.method import SpeculatorOptions
from speculators.ngrams.lookahead import LookaheadConfig
from speculators.pool import SpeculatorPool
from speculators.registry import warmed
from speculators.spectra.core import SpectraCoreConfig

JOBS = [
    TextJob(tuple(range(5 + i, 40 + 9 * i)), 1 + i, temperature, 24, ()) for temperature in (0.0, 1.0) for i in range(3)
]
ROWS = [
    AcceptanceRow("pld"),
    AcceptanceRow("suffix+token-recycling", max_nodes=16),
    AcceptanceRow("suffix+token-recycling"),
    AcceptanceRow("spectra-core", with_settings(SpectraCoreConfig.paper()), 128),
    AcceptanceRow("lookahead", with_settings(LookaheadConfig.paper())),
    AcceptanceRow("goose"),
    AcceptanceRow("stand"),
    AcceptanceRow("token-recycling", warm=True),
]


def local_target(path: Path) -> LocalTarget:
    return LocalTarget.load(replace(TargetOptions(str(path)), kv_bytes=1 << 24), path)


class RecordingTarget:
    """Keeps the nodes that a target scores, by text, root and path."""

    def __init__(self, target: LocalTarget) -> None:
        self.info, self._target = target.info, target
        self.scored: list[tuple[int, int, tuple[int, ...]]] = []

    def step(self, step: Step) -> StepResult:
        for work in step.work:
            if work.tree is not None:
                paths: list[tuple[int, ...]] = []
                for token, parent in zip(work.tree.tokens, work.tree.parents, strict=True):
                    paths.append((*(() if parent < 0 else paths[parent]), token))
                self.scored += [(work.seq, work.n_cached, paths[node]) for node in work.tree.probe_ends]
        return self._target.step(step)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_computed_replay_gives_the_figures_of_the_model_and_scores_no_node_twice(
    tiny_checkpoint: Path, tmp_path: Path, temperature: float
) -> None:
    jobs = [job for job in JOBS if job.temperature == temperature]
    model = local_target(tiny_checkpoint)
    archive = TextArchive(tmp_path, "tiny")
    archive.record(model, jobs)
    texts = archive.read(jobs)
    rows = RecordedRows(texts)
    recording = RecordingTarget(local_target(tiny_checkpoint))
    scorer = PathScorer(lambda: recording, rows, model.info.block_size)
    for row in ROWS:
        replayed = run_texts(RecordedTarget(model.info, rows, scorer), SpeculatorPool(row.options), row, jobs)
        computed = run_texts(model, SpeculatorPool(row.options), row, jobs)
        assert (
            [text for text, _ in replayed]
            == [text for text, _ in computed]
            == [text.tokens[text.n_prompt :].tolist() for text in texts]
        )
        for (_, ours), (_, theirs) in zip(replayed, computed, strict=True):
            assert ours.step_tokens == theirs.step_tokens, row.method
            assert ours.by_source == theirs.by_source, row.method
    assert max(max(stats.step_tokens) for _, stats in replayed) > 1
    scored = [(text, *rows.texts[text][: root + 1], *path) for text, root, path in recording.scored]
    assert len(scored) == len(set(scored)) > 1000


def test_off_the_text_rows_are_those_that_the_model_computes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    model, jobs = local_target(tiny_checkpoint), JOBS[:2]
    archive = TextArchive(tmp_path, "tiny")
    archive.record(model, jobs)
    rows = RecordedRows(archive.read(jobs))
    scorer = PathScorer(lambda: local_target(tiny_checkpoint), rows, model.info.block_size)
    replayed = RecordedTarget(model.info, rows, scorer)
    row, n_compared = AcceptanceRow("stand"), 0

    class Both:
        info = model.info

        def step(self, step: Step) -> StepResult:
            nonlocal n_compared
            ours, theirs = replayed.step(step), model.step(step)
            for mine, other, work in zip(ours.results, theirs.results, step.work, strict=True):
                if work.tree is not None and len(other.tokens) < work.max_new:
                    assert mine.top_ids.nodes.tolist() == other.top_ids.nodes.tolist()
                    assert np.array_equal(mine.top_ids.ids, other.top_ids.ids)
                    assert mine.top_ids.logprobs is not None
                    assert other.top_ids.logprobs is not None
                    assert np.allclose(mine.top_ids.logprobs, other.top_ids.logprobs, atol=1e-4)
                    n_compared += len(other.top_ids.nodes)
            return theirs

    replayed.assign(0, 0)
    replayed.assign(1, 1)
    run_texts(Both(), SpeculatorPool(row.options), row, jobs)
    assert n_compared > 100


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    folder = tmp_path / "prompts"
    folder.mkdir()
    for kind, category in (("math", ""), ("chat", "writing")):
        lines = [
            json.dumps({"question_id": i, "category": category, "turns": [f"What is {i} and {i} and {i}?"]})
            for i in range(6)
        ]
        (folder / KINDS[kind].file).write_text("\n".join(lines))
    return folder


def result(flags: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Mapping[str, object]:
    assert acceptance.main(flags) == 0
    document: Mapping[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return document


def test_a_run_continues_from_its_records_and_refuses_those_of_other_settings(
    tiny_checkpoint: Path,
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    flags = ["--model", str(tiny_checkpoint), "--prompts", str(prompts), "--kinds", "math", "chat", "--per-kind", "2"]
    flags += ["--max-tokens", "12", "--half", "1", "--out", str(out)]
    few = ["--only", "pld", "adapld", "suffix+token-recycling"]
    whole = result([*flags, *few], capsys)
    file = out / "methods-0" / "records.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + 2 * 3
    file.write_bytes(b"".join(lines[:3]) + lines[3][:20])  # as after SIGKILL
    assert result([*flags, *few], capsys) == whole
    assert sorted(file.read_bytes().splitlines()) == sorted(line.rstrip() for line in lines)
    rows = whole["rows"]
    assert isinstance(rows, list)
    assert [row["row"] for row in rows] == ["pld", "adapld", "suffix+token-recycling"]
    assert all(row["texts"] == 4 and row["differ"] == row["failures"] == 0 for row in rows)
    for figure in ("tokens_per_forward", "pre_loop_over_first"):
        assert all(row[figure]["low"] <= row[figure]["ratio"] <= row[figure]["high"] for row in rows)
    assert rows[0]["pre_loop_over_first"] == {"ratio": 1.0, "low": 1.0, "high": 1.0}
    assert (file.parent / "tables.md").read_text().count("\n") == 2 + 3
    file.write_bytes(b"".join(lines[:5]))  # one row of the second kind
    monkeypatch.setattr(AcceptanceRun, "_run", interrupted)
    partial = result([*flags, *few], capsys)["rows"]
    assert isinstance(partial, list)
    assert [list(row["pre_loop_by_kind"]) for row in partial] == [["math"]] * 3
    file.write_bytes(lines[0])
    with pytest.raises(SystemExit, match="no kind of prompt has all its rows yet"):
        acceptance.main([*flags, *few])
    assert (file.parent / "acceptance.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="no prompt of the kind rag"):
        acceptance.main([*flags, "--kinds", "rag"])
    with pytest.raises(SystemExit, match="max_tokens: 12 there, 13 now"):
        acceptance.main([*flags, "--max-tokens", "13"])
    with pytest.raises(SystemExit, match="--only names nothing; the rows are pld, "):
        acceptance.main([*flags, "--only", "nothing"])


@pytest.mark.parametrize("table", ["sizes", "mixes", "core", "lookahead", "pld-plus", "paper", "retrieval", "draft"])
def test_the_rows_of_every_table_run(
    tiny_checkpoint: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("What is 3 and 3 and 3? It is 9.\n" * 20)
    flags = ["--model", str(tiny_checkpoint), "--prompts", str(prompts), "--kinds", "math", "--per-kind", "1"]
    flags += ["--max-tokens", "6", "--rows", table, "--retrieval", str(texts), "--draft-model", str(tiny_checkpoint)]
    document = result(flags, capsys)
    rows = document["rows"]
    assert isinstance(rows, list)
    assert len(rows) >= 10
    assert all(row["differ"] == row["failures"] == 0 for row in rows)


def record_of(row: str, step_tokens: list[list[int]], loops_at: list[int | None], kind: str = "math") -> RowRecord:
    return RowRecord(row, kind, "", step_tokens, loops_at, 9, {}, 0, 0)


def test_a_row_counts_texts_until_they_loop_and_its_interval_narrows_with_more_of_them() -> None:
    few, many = (record_of("a", [[1, 3], [4, 2, 6]] * n, [None, 5] * n) for n in (2, 50))
    one, other = (row_figures("a", [record], [record]) for record in (few, many))
    ratio = one["tokens_per_forward"]["ratio"]
    assert ratio == other["tokens_per_forward"]["ratio"] == round(16 / 5, 3)
    assert one["pre_loop"] == round((1 + 3 + 4) / 3, 3)
    assert one["drafted_per_forward"] == round(9 / 10, 2)
    assert one["looping"] == 2
    widths = [each["tokens_per_forward"]["high"] - each["tokens_per_forward"]["low"] for each in (one, other)]
    assert 0 < widths[1] < widths[0] / 2


def test_rows_are_compared_on_the_same_texts_and_kinds_keep_their_shares() -> None:
    texts = [[2, 2, 2, 2], [8], [1] * 8, [4, 4]]
    first = [record_of("a", texts[:2], [None] * 2), record_of("a", texts[2:], [None] * 2, "code")]
    halved = [[n for step in steps for n in ([step // 2] * 2 if step > 1 else [1])] for steps in texts]
    second = [record_of("b", halved[:2], [None] * 2), record_of("b", halved[2:], [None] * 2, "code")]
    over = row_figures("b", second, first)["pre_loop_over_first"]
    own = row_figures("b", second, first)["tokens_per_forward"]
    assert over["high"] - over["low"] < own["high"] - own["low"]
    assert over["ratio"] == round((4 + 1 + 8 + 2) / (8 + 2 + 8 + 4), 3)
    alike = [record_of("c", [[2, 2]] * 3, [None] * 3), record_of("c", [[4]] * 3, [None] * 3, "code")]
    exact = row_figures("c", alike, alike)["tokens_per_forward"]  # texts differ between kinds alone
    assert exact["low"] == exact["high"] == exact["ratio"]
    single = row_figures("d", [record_of("d", [[2, 3]], [None]), alike[1]], alike)["tokens_per_forward"]
    assert (single["ratio"], single["low"], single["high"]) == (round((5 + 12) / 5, 3), None, None)


def test_a_row_is_run_again_when_its_prompts_or_settings_change(
    tiny_checkpoint: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []
    run = AcceptanceRun._run

    def counted(self: AcceptanceRun, kind: str, row: AcceptanceRow, *rest: Any) -> Any:
        runs.append(row.method)
        return run(self, kind, row, *rest)

    monkeypatch.setattr(AcceptanceRun, "_run", counted)
    flags = ["--model", str(tiny_checkpoint), "--prompts", str(prompts), "--kinds", "math", "--per-kind", "2"]
    flags += ["--max-tokens", "6", "--only", "pld", "anpd", "--out", str(tmp_path / "out")]
    acceptance.main(flags)
    acceptance.main(flags)
    assert runs == ["pld", "anpd"]
    tables = dict(acceptance.TABLES)
    tables["methods"] = lambda _: {"pld": AcceptanceRow("pld"), "anpd": AcceptanceRow("anpd", max_nodes=4)}
    monkeypatch.setattr(acceptance, "TABLES", tables)
    acceptance.main(flags)
    assert runs == ["pld", "anpd", "anpd"]
    file = prompts / KINDS["math"].file
    file.write_text(file.read_text().replace("What is 0 and", "How much is 0 and"))
    acceptance.main(flags)
    assert runs == ["pld", "anpd", "anpd", "pld", "anpd"]


def test_the_first_text_of_a_warm_row_knows_no_other_prompt(tiny_checkpoint: Path) -> None:
    model, row = local_target(tiny_checkpoint), AcceptanceRow("suffix", warmed(SpeculatorOptions()), warm=True)
    jobs = [JOBS[0], JOBS[0]._replace(prompt=(*JOBS[0].prompt, *JOBS[0].prompt[:9]))]
    (_, alone), *_ = run_texts(model, SpeculatorPool(row.options), row, jobs[:1])
    (_, first), (_, second) = run_texts(model, SpeculatorPool(row.options), row, jobs)
    assert (first.step_tokens, first.drafted_tokens) == (alone.step_tokens, alone.drafted_tokens)
    (_, cold), *_ = run_texts(model, SpeculatorPool(row.options), row, jobs[1:])
    assert second.drafted_tokens != cold.drafted_tokens


def test_a_method_that_fails_is_named_and_ends_with_status_1() -> None:
    bad = replace_record(record_of("pld", [[1, 1]], [None]), failures=3)
    found = report(Measurement({}, {"pld": [bad]}, ["math"]))
    assert found.failed
    assert found.tables.endswith("pld: 0 texts differ, 3 failures")


def test_tokens_along_a_text_are_those_of_the_steps_that_begin_there() -> None:
    steps = [[15, 1, 15, 16], [7, 8, 4, 4, 4, 4, 4]]  # with the token of the prefill 48 and 36
    assert along_text([record_of("a", steps, [None, None])]) == [(15 + 7 + 8) / 3, (1 + 15 + 4 * 4) / 6, (16 + 4) / 2]
    assert along_text([record_of("a", steps, [None, 17])])[1] == (1 + 15 + 4) / 3
