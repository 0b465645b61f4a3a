"""Shared parts of all reports: summaries of values, loops of a text, tables, JSON files, plots."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.reporting.plotting import can_plot
from app.reporting.report import (
    NOTHING,
    as_line,
    check_writable,
    columns,
    markdown,
    number,
    percent,
    write_document,
    write_lines,
    write_report,
)
from app.reporting.summaries import Quartiles, grouped, loop_start, percentiles, quartiles, ratio, summed
from engine.errors import ConfigError

finite = st.floats(0, 1e6, allow_nan=False)


@given(st.lists(finite, min_size=1))
def test_percentiles_are_values_that_occurred(values: list[float]) -> None:
    found = percentiles(values)
    assert found is not None
    assert {found.p50, found.p90, found.p99, found.max} <= set(values)
    assert min(values) <= found.p50 <= found.p90 <= found.p99 <= found.max == max(values)
    assert min(values) <= found.mean <= found.max
    for p, value in ((50, found.p50), (90, found.p90), (99, found.p99)):
        assert 100 * sum(x <= value for x in values) >= p * len(values)
        assert 100 * sum(x < value for x in values) < p * len(values)


def test_summaries_leave_out_unknown_values_and_keep_the_order_of_groups() -> None:
    found = percentiles([None, 2.0, None, 4.0])
    assert found is not None
    assert (found.n, found.mean, found.max) == (2, 3.0, 4.0)
    assert percentiles([None]) is None
    assert [quartiles(values) for values in ([], [3.0], [4.0, 0.0, 1.0, 3.0, 2.0])] == [
        None,
        Quartiles(3, 3, 3),
        Quartiles(1, 2, 3),
    ]
    assert (ratio(3, 2), ratio(None, 2), ratio(3, 0)) == (1.5, None, None)
    assert summed([{"a": {"x": 1}}, {"b": {"x": 2}, "a": {"x": 3, "y": 4}}]) == {"a": {"x": 4, "y": 4}, "b": {"x": 2}}
    assert list(grouped([3, 1, 2, 5], lambda n: n % 2).items()) == [(1, [3, 1, 5]), (0, [2])]


PHRASE = list(range(8))


@pytest.mark.parametrize(
    ("ids", "start"),
    [
        (list(range(100)), None),
        ([*PHRASE, 90, *PHRASE, 91], None),  # two occurrences are not yet a loop
        ([70, 71, *PHRASE, 90, *PHRASE, 91, *PHRASE], 2 + 8 + 1),
        ([5] * 10, 1),  # occurrences may overlap
    ],
)
def test_a_loop_starts_at_the_second_of_three_occurrences(ids: list[int], start: int | None) -> None:
    assert loop_start(ids) == start


def test_tables_align_names_left_and_figures_right() -> None:
    lines = markdown(("name", "tau"), [["pld", number(1.5)], ["spectra", number(None)]]).splitlines()
    assert lines == ["| name    |  tau |", "|---------|-----:|", "| pld     | 1.50 |", f"| spectra |    {NOTHING} |"]
    assert (percent(0.5), percent(None)) == ("50.0%", NOTHING)
    assert columns([("a", "12", ""), ("bbb", "3", "x")], left=(0, 2)) == "a    12\nbbb   3  x"


def test_documents_are_json_in_utf_8_and_an_unwritable_place_is_refused_by_its_flag(tmp_path: Path) -> None:
    document = {"text": "größer", "values": [1.5, None]}
    write_document(document, tmp_path / "d.json")
    write_lines([document, document], tmp_path / "d.jsonl")
    write_report(tmp_path / "report", "d.json", document, "| a |")
    assert {path.name: path.read_text("utf-8") for path in (tmp_path / "report").iterdir()} == {
        "d.json": (tmp_path / "d.json").read_text("utf-8"),
        "tables.md": "| a |\n",
    }
    assert json.loads((tmp_path / "d.json").read_text("utf-8")) == document
    assert (tmp_path / "d.jsonl").read_text("utf-8").splitlines() == [as_line(document)] * 2
    assert "größer" in as_line(document)
    check_writable(tmp_path / "new" / "folder", tmp_path / "new" / "d.json")
    assert (tmp_path / "new" / "folder").is_dir()
    with pytest.raises(ConfigError, match="--out: "):
        check_writable(tmp_path / "d.json" / "folder", None)
    with pytest.raises(ConfigError, match="--json: "):
        check_writable(None, tmp_path / "d.json" / "d.json")


def test_without_matplotlib_one_line_says_how_to_get_plots(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert can_plot()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not can_plot()
    assert capsys.readouterr().err == "spectra: plots need matplotlib: pip install 'spectra-serve[plots]'\n"
