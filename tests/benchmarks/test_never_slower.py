"""The stand for "is it ever slower?": what it lets pass and what it refuses, and a whole run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.never_slower.__main__ import main, methods_of
from benchmarks.never_slower.cells import AUTO, CPU, NONE, Cell, Record, grid
from benchmarks.never_slower.prompts import KINDS, prompts_of
from benchmarks.never_slower.record_file import RecordFile, Turn
from benchmarks.never_slower.report import report
from benchmarks.never_slower.summary import Summary, categories, hopeful, misses
from engine.errors import ConfigError

CELL = Cell("8b-h200", "chat", 0.0, 4)


# -- bars ------------------------------------------------------------------------------------------------------------


def turn(cell: Cell, number: int, seconds: dict[str, float], digest: str = "same", failures: int = 0) -> Turn:
    """Streams that all take so long."""
    return {
        method: Record(cell, number, method, [s] * cell.streams, [s / 4] * cell.streams, 40, 36, 36, 36, s / 10, s, s,
                       digest if method == AUTO else "same", failures, 1.0)
        for method, s in seconds.items()
    }  # fmt: skip


def summary(cell: Cell = CELL, digest: str = "same", **seconds: float) -> Summary:
    every = {NONE: 1.0} | seconds
    return Summary.of(cell, [turn(cell, number, every, digest) for number in range(2)])


@pytest.mark.parametrize(
    ("auto", "pld", "said"),
    [
        (1.0, 1.0, []),
        (1.019, 1.1, []),
        (1.03, 1.1, ["8b-h200 chat T=0 x4: 0.971 (0.971-0.971) of no speculation"]),
        (0.9, 0.88, []),
        (0.9, 0.85, ["8b-h200 chat T=0: 0.944 (0.944-0.944) of the best fixed method"]),
    ],
)
def test_a_cell_below_a_bar_is_named_and_decides_the_exit_status(
    auto: float, pld: float, said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [summary(auto=auto, pld=pld)]
    assert misses(found) == said
    assert report(found, {}).publish(tmp_path) == bool(said)
    assert json.loads(capsys.readouterr().out)["misses"] == said
    assert (tmp_path / "never-slower.png").is_file()


def test_a_text_that_differs_fails_however_fast_it_was() -> None:
    assert misses([summary(digest="other", auto=0.1, pld=1.0)]) == ["8b-h200 chat T=0 x4: other texts by auto"]


def test_a_single_turn_is_shown_and_not_judged() -> None:
    alone = Summary.of(CELL, [turn(CELL, 0, {AUTO: 2.0, NONE: 1.0, "pld": 1.0})])
    assert misses([alone]) == []
    assert "0.500" in report([alone], {}).tables


def test_speculators_that_failed_are_told_of() -> None:
    found = Summary.of(CELL, [turn(CELL, number, {AUTO: 0.5, NONE: 1.0}, failures=3) for number in range(2)])
    assert misses([found]) == ["8b-h200 chat T=0 x4: speculators failed 6 times"]


def test_a_category_is_held_against_the_bar_over_all_its_streams() -> None:
    cells = [summary(CELL._replace(streams=n), auto=seconds, pld=1.0) for n, seconds in ((1, 0.5), (4, 1.1))]
    ((name, interval),) = categories(cells).items()
    assert name == "8b-h200 chat T=0"
    assert interval.ratio == pytest.approx((2.0 / 1.1) ** 0.5)


def test_methods_without_hope_are_not_run_again_nor_with_more_streams() -> None:
    file = RecordFile(None, {})
    seconds = {AUTO: 1.2, NONE: 1.0, "pld": 0.8, "suffix": 0.9, "spectra-core": 1.2}
    file.append(turn(CELL, 0, seconds))
    assert methods_of(CELL, file, list(seconds)) == list(seconds)  # one turn is not enough to tell
    file.append(turn(CELL, 1, seconds | {AUTO: 0.6}))
    assert hopeful(file.turns(CELL)) == ["pld", "suffix"]
    assert methods_of(CELL, file, list(seconds)) == [AUTO, NONE, "pld", "suffix"]  # not sure
    assert methods_of(CELL._replace(streams=16), file, list(seconds)) == list(seconds)
    assert methods_of(CELL._replace(streams=64), file, list(seconds)) == [AUTO, NONE, "pld", "suffix"]


def test_a_cell_that_is_sure_is_done() -> None:
    file = RecordFile(None, {})
    for number in range(2):
        file.append(turn(CELL, number, {AUTO: 0.5, NONE: 1.0, "pld": 0.5}))
    assert methods_of(CELL, file, [AUTO, NONE, "pld"]) == []


# -- the whole -------------------------------------------------------------------------------------------------------


def test_prompts_of_every_kind_are_there_in_a_bare_checkout_and_in_files(tiny_checkpoint: Path, tmp_path: Path) -> None:
    for name, category in (("spec_bench", "summarization"), ("gsm8k", "gsm8k"), ("humaneval", "humaneval")):
        lines = [{"turns": [f"{name} {i}"], "category": category} for i in range(3)]
        lines += [{"turns": [f"A poem of {name}"], "category": "writing"}]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for folder in (None, tmp_path):
        found = prompts_of(KINDS, folder, tiny_checkpoint)
        assert all(found[kind] for kind in KINDS)
        assert len({tuple(ids) for kind in KINDS for ids in found[kind]}) == sum(map(len, found.values()))


def test_few_streams_come_first_and_each_machine_has_its_own() -> None:
    cells = grid([CPU, "8b-h200"], ["chat"], [0.0], None)
    assert [(cell.machine, cell.streams) for cell in cells] == [
        (CPU, 1), (CPU, 4), (CPU, 16), ("8b-h200", 16), ("8b-h200", 64), ("8b-h200", 256)
    ]  # fmt: skip


def test_a_run_measures_every_cell_and_goes_on_where_it_was(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", str(tiny_checkpoint), "--kinds", "edits", "--temperatures", "0", "--texts", "2"]
    flags += ["--concurrency", "1", "--only", CPU, "70b-h100x4", "--fixed", "pld", "--tokens", "8"]
    assert main([*flags, "--minutes", "0", "--out", str(tmp_path)]) == 0
    main([*flags, "--out", str(tmp_path)])
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(document["cells"]) == 2
    assert all(cell["identical"] and cell["turns"] >= 2 for cell in document["cells"])
    assert all(cell["methods"][NONE]["tokens_per_forward"] == 1.0 for cell in document["cells"])
    before = (tmp_path / "records.jsonl").read_bytes()
    main([*flags, "--out", str(tmp_path)])
    assert (tmp_path / "records.jsonl").read_bytes() == before
    with pytest.raises(SystemExit, match="other settings"):
        main([*flags, "--out", str(tmp_path), "--tokens", "9"])


def test_a_line_that_was_cut_off_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    RecordFile(path, {"a": 1}).append(turn(CELL, 0, {AUTO: 1.0, NONE: 1.0}))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"auto": {"cell"')
    assert len(RecordFile(path, {"a": 1}).turns(CELL)) == 1
    assert path.read_bytes() == whole
    path.write_bytes(whole + b"[]\n")
    with pytest.raises(ConfigError, match="line 3"):
        RecordFile(path, {"a": 1})
