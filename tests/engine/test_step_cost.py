"""Step times: exact where they were measured, sensible between and beyond, and the same when read from their file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.step_cost import StepCosts, read_costs, write_costs

COSTS = StepCosts({1: ((1, 2, 5), (1.0, 1.5, 6.0)), 4: ((4, 8), (2.0, 4.0)), 16: ((16, 32), (8.0, 8.0))})


@st.composite
def curves(draw: st.DrawFn) -> StepCosts:
    """Costs with one to four curves of one to five points."""
    made = {}
    for batch in draw(st.sets(st.integers(1, 40), min_size=1, max_size=4)):
        rows = sorted(draw(st.sets(st.integers(1, 500), min_size=1, max_size=5)))
        steps = draw(st.lists(st.floats(0.0, 3.0), min_size=len(rows), max_size=len(rows)))
        made[batch] = (tuple(rows), tuple((1e-3 + np.cumsum(steps)).tolist()))
    prompts = {}
    for context in draw(st.sets(st.integers(0, 4000), max_size=2)):
        rows = sorted(draw(st.sets(st.integers(1, 500), min_size=1, max_size=5)))
        steps = draw(st.lists(st.floats(0.0, 3.0), min_size=len(rows), max_size=len(rows)))
        prompts[context] = tuple(rows), tuple((1e-3 + np.cumsum(steps)).tolist())
    plain = {batch: draw(st.floats(1e-4, 3.0)) for batch in made if draw(st.booleans())}
    return StepCosts(made, prompts, plain)


@given(curves())
def test_a_measured_point_is_what_was_measured(costs: StepCosts) -> None:
    for batch, (rows, seconds) in costs.curves.items():
        assert costs.seconds(batch, rows) == pytest.approx(seconds)
        assert costs.seconds(batch, np.array(rows)).dtype == np.float64


@given(curves(), st.integers(1, 100))
def test_more_rows_never_take_less_time(costs: StepCosts, batch: int) -> None:
    seconds = costs.seconds(batch, np.arange(batch, batch + 700))
    assert np.all(np.diff(seconds) >= -1e-12)
    assert np.all(seconds > 0)


@given(curves(), st.integers(1, 100), st.integers(1, 600))
def test_between_two_measured_batches_the_time_lies_between(costs: StepCosts, batch: int, rows: int) -> None:
    sizes = sorted(costs.curves)
    batch = min(batch, sizes[-1])
    around = [
        max([s for s in sizes if s <= batch], default=sizes[0]),
        min([s for s in sizes if s >= batch], default=sizes[-1]),
    ]
    low, high = sorted(float(costs.seconds(size, [rows])[0]) for size in around)
    assert low - 1e-9 <= costs.seconds(batch, [rows])[0] <= high + 1e-9


def test_between_points_the_line_and_beyond_the_last_its_slope() -> None:
    assert COSTS.seconds(1, [1, 2, 3, 4, 5]).tolist() == [1.0, 1.5, 3.0, 4.5, 6.0]
    assert COSTS.seconds(1, [7, 9]) == pytest.approx([6.0 + 2 * 1.25, 6.0 + 4 * 1.25])  # 5 seconds over 4 rows
    assert COSTS.seconds(16, [16, 24, 320]).tolist() == [8.0, 8.0, 8.0]
    assert COSTS.seconds(1, [0]).tolist() == [1.0]  # before the first point: no step is cheaper than that


def test_between_batch_sizes_the_share() -> None:
    assert COSTS.seconds(2, [8])[0] == pytest.approx(2 / 3 * COSTS.seconds(1, [8])[0] + 1 / 3 * 4.0)
    assert COSTS.seconds(10, [16, 40]) == pytest.approx(0.5 * COSTS.seconds(4, [16, 40]) + 0.5 * 8.0)


def test_beyond_the_largest_batch_and_below_the_smallest_the_nearest_curve_counts() -> None:
    assert COSTS.seconds(64, [64, 200]).tolist() == [8.0, 8.0]
    only = StepCosts({4: ((4, 8), (2.0, 4.0))})
    for batch in (1, 4, 9):
        assert only.seconds(batch, [4, 6, 10]).tolist() == [2.0, 3.0, 5.0]


def test_beyond_the_largest_batch_every_sequence_adds_what_the_last_ones_added() -> None:
    rising = StepCosts({1: ((1, 9), (1.0, 1.8)), 4: ((4, 12), (1.6, 2.4)), 16: ((16, 48), (5.0, 8.2))})
    more = (5.0 - (1.6 + 12 * 0.1)) / 12  # of one more sequence, at 16 rows
    assert rising.seconds(64, [64, 100]) == pytest.approx([5.0 + 4.8 + 48 * more, 5.0 + 8.4 + 48 * more])
    assert rising.seconds(64, [64])[0] > rising.seconds(16, [64])[0] > rising.seconds(16, [16])[0]


def test_longer_texts_than_those_of_the_curves_add_what_they_add_to_chunks() -> None:
    near, far = ((1, 64), (1.0, 1.63)), ((1, 64), (1.2, 2.46))  # 0.19 + 0.01 a row, behind 2000 tokens more
    costs = StepCosts({1: ((1, 5), (1.0, 1.4)), 8: ((8, 40), (1.5, 4.7))}, {0: near, 2000: far})
    for context in (0, 100, 256):
        assert costs.seconds(8, [8, 24], context).tolist() == costs.seconds(8, [8, 24]).tolist()
    grown = costs.seconds(8, [8, 24], 1256) - costs.seconds(8, [8, 24])
    assert grown == pytest.approx([8 * 0.2 / 2, 8 * (0.2 + 2 * 0.01) / 2])
    assert costs.seconds(8, [8], 4256)[0] == pytest.approx(costs.seconds(8, [8])[0] + 2 * 8 * 0.2)
    assert COSTS.seconds(4, [4], 9000).tolist() == COSTS.seconds(4, [4]).tolist()  # no chunk was measured


def test_reading_back_takes_what_plain_steps_lack() -> None:
    curves = {1: ((1, 5), (1.0, 1.4)), 4: ((4, 8), (2.0, 2.5)), 16: ((16, 32), (8.0, 9.0))}
    fixed, each = StepCosts(curves, {}, {1: 0.7, 16: 6.2}).read_back
    assert (fixed, each) == pytest.approx((0.2, 0.1))  # 0.3 of one row, 1.8 of sixteen
    assert StepCosts(curves, {}, {4: 1.5}).read_back == pytest.approx((0.5, 0.0))
    assert StepCosts(curves).read_back == (0.0, 0.0)
    assert StepCosts(curves, {}, {1: 1.5, 16: 9.0}).read_back == (0.0, 0.0)  # noise


def test_a_single_point_is_a_flat_curve() -> None:
    assert StepCosts({1: ((1,), (0.5,))}).seconds(3, [1, 9, 99]).tolist() == [0.5, 0.5, 0.5]


@given(curves(), st.integers(1, 40), st.integers(1, 70))
def test_more_sequences_never_take_less_time(costs: StepCosts, n: int, rows: int) -> None:
    seconds = costs.by_batch(n, rows)
    assert seconds.shape == (n,)
    assert np.all(seconds > 0)
    assert np.all(np.diff(seconds) >= 0)


def test_steps_of_more_sequences_with_the_same_rows_each() -> None:
    assert COSTS.by_batch(5, 1)[[0, 3]].tolist() == [1.0, 2.0]
    assert COSTS.by_batch(20, 2)[[0, 3, 9, 15, 19]] == pytest.approx([1.5, 4.0, 6.0, 8.0, 8.0 + 4 / 3])
    assert StepCosts({4: ((4, 8), (2.0, 4.0))}).by_batch(6, 1).tolist() == [2.0, 2.0, 2.0, 2.0, 2.5, 3.0]


def test_chunks_of_prompt_between_and_beyond_what_was_measured() -> None:
    near, far = ((1, 100), (1.0, 2.0)), ((1, 100), (1.5, 4.5))
    both = StepCosts(COSTS.curves, {0: near, 1000: far})
    assert both.prompt_seconds(0, [1, 100, 199]).tolist() == pytest.approx([1.0, 2.0, 3.0])
    assert both.prompt_seconds(500, [1, 100]).tolist() == pytest.approx([1.25, 3.25])
    assert both.prompt_seconds(2000, [1, 100]).tolist() == pytest.approx([2.0, 7.0])
    assert StepCosts(COSTS.curves, {0: near}).prompt_seconds(2000, [1, 100]).tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="no step with rows of prompt"):
        COSTS.prompt_seconds(0, [1])


@given(curves(), st.integers(0, 9000))
def test_more_rows_of_prompt_never_take_less_time(costs: StepCosts, context: int) -> None:
    if costs.prompts:
        seconds = costs.prompt_seconds(context, np.arange(1, 900))
        assert np.all(np.diff(seconds) >= 0)
        assert np.all(costs.prompt_seconds(context + 50, np.arange(1, 900)) >= seconds - 1e-9)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {1: ((), ())},
        {0: ((1, 2), (1.0, 2.0))},
        {1: ((1, 2), (1.0,))},
        {1: ((2, 1), (1.0, 2.0))},
        {1: ((1, 1), (1.0, 2.0))},
        {1: ((1, 2), (2.0, 1.0))},
        {1: ((1, 2), (0.0, 1.0))},
        {1: ((1, 2), (1.0, float("nan")))},
        {1: ((1, 2), (1.0, float("inf")))},
        {1: ((1, 2), ("a", "b"))},
    ],
    ids=str,
)
def test_what_is_no_curve_is_refused(wrong: dict[int, tuple[tuple[int, ...], tuple[float, ...]]]) -> None:
    with pytest.raises(ValueError):
        StepCosts(wrong)
    if wrong and 0 not in wrong:
        with pytest.raises(ValueError):
            StepCosts(COSTS.curves, wrong)


@given(curves())
def test_costs_come_back_from_their_file(tmp_path_factory: pytest.TempPathFactory, costs: StepCosts) -> None:
    file = tmp_path_factory.mktemp("costs") / "some" / "folder" / "model-0.1.0-host.name.json"
    write_costs(file, costs)
    assert read_costs(file) == costs
    assert [path.name for path in file.parent.iterdir()] == [file.name]  # and nothing half-written beside it


def test_a_later_measurement_replaces_an_earlier_one(tmp_path: Path) -> None:
    write_costs(tmp_path / "costs.json", COSTS)
    write_costs(tmp_path / "costs.json", StepCosts({1: ((1,), (0.5,))}))
    assert read_costs(tmp_path / "costs.json") == StepCosts({1: ((1,), (0.5,))})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"{",
        b"null",
        b"3",
        b"[]",
        b"{}",
        b'"text"',
        b'{"one": [[1], [0.1]]}',
        b'{"1": 5}',
        b'{"1": [[1, 2]]}',
        b'{"1": [[1, 2], [0.1]]}',
        b'{"1": [[], []]}',
        b'{"1": ["ab", "cd"]}',
        b'{"1": [[1, 2], [0.1, NaN]]}',
        b'{"1": [[1, 2], [0.1, null]]}',
        b'{"1": [[1, 2], [0.1, {}]]}',
        b'{"1": {"rows": [1], "seconds": [2]}}',
        b'{"1": [[1, 2], [0.1, 0.2]]}',  # what the first version wrote
        b'{"format": 1, "curves": {"1": [[1], [0.1]]}, "prompts": {}}',
        b'{"format": 2, "curves": {"1": [[1], [0.1]]}}',
        b'{"format": 2, "curves": {"1": [[1], [0.1]]}, "prompts": {"-1": [[1], [0.1]]}}',
        b'{"format": 2, "curves": {}, "prompts": {}}',
        b'{"format": 2, "curves": {"1": [[1], [0.1]]}, "prompts": {}}',
        b'{"format": 3, "curves": {"1": [[1], [0.1]]}, "prompts": {}}',
        b'{"format": 3, "curves": {"1": [[1], [0.1]]}, "prompts": {}, "plain": {"1": -1}}',
        b'{"format": 3, "curves": {"1": [[1], [0.1]]}, "prompts": {"-1": [[1], [0.1]]}, "plain": {}}',
        b'{"format": 3, "curves": {}, "prompts": {}, "plain": {}}',
        json.dumps({"model": "x", "heads": [[1, 2]]}).encode(),
    ],
    ids=str,
)
def test_a_broken_or_foreign_file_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "costs.json").write_bytes(content)
    assert read_costs(tmp_path / "costs.json") is None
    assert read_costs(tmp_path / "missing.json") is None
    assert read_costs(tmp_path) is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    write_costs(tmp_path / "file" / "costs.json", COSTS)
    (tmp_path / "folder.json").mkdir()
    write_costs(tmp_path / "folder.json", COSTS)
    assert [record.message.partition(":")[0] for record in caplog.records] == ["step times were not kept"] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.json"]
