"""What all reports share: summaries of values, tables as text, JSON files, axes that keep bars clear of the frame."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.reporting.documents import as_line, check_writable, write_document, write_lines
from app.reporting.plotting import grid, headroom
from app.reporting.summaries import Quartiles, grouped, percentile, percentiles, quartiles, ratio, summed
from app.reporting.tables import NOTHING, columns, markdown, number
from engine.errors import ConfigError

finite = st.floats(0, 1e6, allow_nan=False)


@given(st.lists(finite, min_size=1))
def test_percentiles_are_values_that_occurred_in_order(values: list[float]) -> None:
    found = percentiles(values)
    assert found is not None
    assert {found.p50, found.p90, found.p99, found.max} <= set(values)
    assert min(values) <= found.p50 <= found.p90 <= found.p99 <= found.max == max(values)
    assert min(values) <= found.mean <= found.max


@given(st.lists(finite, min_size=1).map(sorted), st.integers(1, 99))
def test_a_percentile_is_the_smallest_value_with_so_many_at_most_as_large(ranked: list[float], p: int) -> None:
    value = percentile(ranked, p)
    assert 100 * sum(x <= value for x in ranked) >= p * len(ranked)
    assert 100 * sum(x < value for x in ranked) < p * len(ranked)


def test_quartiles_of_no_one_and_several_values() -> None:
    assert quartiles([]) is None
    assert quartiles([3.0]) == Quartiles(3, 3, 3)
    assert quartiles([4.0, 0.0, 1.0, 3.0, 2.0]) == Quartiles(1, 2, 3)


def test_unknown_values_are_left_out_of_percentiles() -> None:
    found = percentiles([None, 2.0, None, 4.0])
    assert found is not None
    assert (found.n, found.mean, found.max) == (2, 3.0, 4.0)
    assert percentiles([None]) is None


def test_a_ratio_without_a_known_value_or_a_divisor_is_unknown() -> None:
    assert (ratio(3, 2), ratio(None, 2), ratio(3, 0)) == (1.5, None, None)


def test_counts_are_summed_by_both_names_and_groups_keep_their_order() -> None:
    assert summed([{"a": {"x": 1}}, {"b": {"x": 2}, "a": {"x": 3, "y": 4}}]) == {"a": {"x": 4, "y": 4}, "b": {"x": 2}}
    assert list(grouped([3, 1, 2, 5], lambda n: n % 2).items()) == [(1, [3, 1, 5]), (0, [2])]


def test_a_markdown_table_is_aligned_names_left_and_figures_right() -> None:
    lines = markdown(("name", "tau"), [["pld", number(1.5)], ["spectra", number(None)]]).splitlines()
    assert lines == ["| name    |  tau |", "|---------|-----:|", "| pld     | 1.50 |", f"| spectra |    {NOTHING} |"]


def test_columns_have_no_trailing_blanks() -> None:
    assert columns([("a", "12", ""), ("bbb", "3", "x")], left=(0, 2)) == "a    12\nbbb   3  x"


def test_documents_and_lines_hold_the_same_json(tmp_path: Path) -> None:
    document = {"text": "größer", "values": [1.5, None]}
    write_document(document, tmp_path / "d.json")
    write_lines([document, document], tmp_path / "d.jsonl")
    assert json.loads((tmp_path / "d.json").read_text("utf-8")) == document
    assert (tmp_path / "d.jsonl").read_text("utf-8").splitlines() == [as_line(document)] * 2
    assert "größer" in as_line(document)


def test_a_report_that_cannot_be_written_is_refused_by_its_flag(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_writable(tmp_path / "new" / "folder", tmp_path / "new" / "d.json")
    assert (tmp_path / "new" / "folder").is_dir()
    with pytest.raises(ConfigError, match="--out: "):
        check_writable(tmp_path / "file" / "folder", None)
    with pytest.raises(ConfigError, match="--json: "):
        check_writable(None, tmp_path / "file" / "d.json")


def test_stacked_bars_keep_clear_of_the_frame_and_empty_axes_have_a_scale() -> None:
    _, axes = grid(1, 2, (4, 2))
    axes[0].bar([0, 1], [3, 4])
    axes[0].bar([0, 1], [2, 0], bottom=[3, 4])
    headroom(axes[:1])
    assert axes[0].get_ylim()[1] > 5
    axes[1].bar([0], [0])
    headroom(axes[1:])
    assert axes[1].get_ylim() == (0, 1)
