"""Step times: exact where they were measured, sensible between and beyond, and measured without leaving a trace."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.step import Step
from engine.step_cost import StepCosts, read_costs, write_costs
from engine.target.info import TargetInfo
from engine.target.step_timing import GRID, PROMPT_ROWS, measure, measurement
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts, reference_tokens

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
    return StepCosts(made, prompts)


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


# -- measuring ---------------------------------------------------------------------------------------------------


def answered(info: TargetInfo, seconds: Callable[[Step], float]) -> tuple[StepCosts, list[Step]]:
    """What is made of a target whose steps take as long as ``seconds`` says, and all its steps."""
    steps, taken, run = [], 0.0, measurement(info)
    try:
        step = next(run)
        while True:
            steps.append(step)
            taken = seconds(step)
            step = run.send(taken)
    except StopIteration as done:
        return done.value, steps


def n_rows(step: Step) -> int:
    return sum(len(work.tokens) + (0 if work.tree is None else len(work.tree)) for work in step.work)


def test_the_costs_are_the_times_of_the_steps_over_the_whole_grid() -> None:
    info = replace(make_target("llama").info, n_blocks=300)
    costs, _ = answered(info, lambda step: 0.01 * len(step.work) + 0.001 * n_rows(step))
    assert {batch: [rows // batch - 1 for rows in curve[0]] for batch, curve in costs.curves.items()} == {
        batch: list(nodes) for batch, nodes in GRID.items()
    }
    for batch, (rows, seconds) in costs.curves.items():
        assert seconds == pytest.approx([0.01 * batch + 0.001 * n for n in rows])
    assert {context: rows for context, (rows, _) in costs.prompts.items()} == {0: (1, 64, 256)}  # 500 tokens at most
    assert costs.prompts[0][1] == pytest.approx([0.01 + 0.001 * n for n in (1, 64, 256)])


def test_chunks_are_measured_far_from_the_beginning_too() -> None:
    info = replace(make_target("llama").info, n_blocks=300, max_model_len=4000)

    def seconds(step: Step) -> float:
        return 0.01 + sum(1e-4 * len(work.tokens) + 1e-7 * len(work.tokens) * work.n_cached for work in step.work)

    costs, _ = answered(info, seconds)
    assert list(costs.prompts) == [0, 2048]
    for context in (0, 1024, 3000):
        wanted = [0.01 + 1e-4 * n + 1e-7 * n * context for n in PROMPT_ROWS]
        assert costs.prompt_seconds(context, PROMPT_ROWS) == pytest.approx(wanted)


def test_a_target_too_slow_for_them_is_not_asked_for_large_steps() -> None:
    info = replace(make_target("llama").info, n_blocks=300)
    costs, steps = answered(info, lambda step: 0.1 * n_rows(step))
    assert costs.prompts[0][0] == (1, 64)
    assert sum(0.1 * n_rows(step) for step in steps if step.work[:1] and step.work[0].tree is not None) < 60


def test_hiccups_are_not_taken_for_the_time_of_a_step() -> None:
    chance = random.Random(3)

    def hiccup(step: Step) -> float:
        return 1e-4 + 1e-5 * n_rows(step) + (0.01 if chance.random() < 0.3 else 0.0)

    costs, _ = answered(make_target("llama").info, hiccup)
    for rows, seconds in costs.curves.values():
        assert seconds == pytest.approx([1e-4 + 1e-5 * n for n in rows])


def test_the_first_step_of_a_size_does_not_count() -> None:
    seen: set[tuple[int, int]] = set()

    def cold(step: Step) -> float:  # faster than ever again, which would be believed
        size = len(step.work), n_rows(step)
        seconds = 0.01 if size in seen else 0.001
        seen.add(size)
        return seconds

    costs, _ = answered(make_target("llama").info, cold)
    for rows, seconds in costs.curves.values():
        assert seconds == pytest.approx([0.01] * len(rows))


def test_a_step_is_not_slower_than_a_larger_one() -> None:
    """Noise only adds: what a large step was seen to take, a smaller one would have."""
    costs, _ = answered(make_target("llama").info, lambda step: 1.0 / (1 + n_rows(step)))
    for rows, seconds in costs.curves.values():
        assert seconds == pytest.approx([1.0 / (1 + rows[-1])] * len(rows))


def test_the_steps_are_ones_a_scheduler_could_have_made() -> None:
    info = make_target("llama").info
    _, steps = answered(info, lambda step: 0.01)
    assert [step.step_id for step in steps] == sorted({step.step_id for step in steps})
    held: dict[int, int] = {}  # sequence -> tokens its blocks hold
    owners: dict[int, int] = {}  # block -> sequence
    for step in steps:
        for seq in step.ends:
            del held[seq]
            owners = {block: owner for block, owner in owners.items() if owner != seq}
        held |= {start.seq: 0 for start in step.starts}
        for work in step.work:
            assert not owners.keys() & set(work.new_blocks)
            owners |= dict.fromkeys(work.new_blocks, work.seq)
            held[work.seq] += len(work.new_blocks) * info.block_size
            n_tree = 0 if work.tree is None else len(work.tree)
            assert work.n_cached + len(work.tokens) + n_tree <= held[work.seq]
            assert work.n_cached + len(work.tokens) <= info.max_model_len
            assert all(0 <= token < info.spec.vocab_size for token in work.tokens)
            assert work.tree is None or all(0 <= token < info.spec.vocab_size for token in work.tree.tokens)
        assert all(0 <= block < info.n_blocks for block in owners)
    assert not held


@pytest.mark.parametrize(
    ("n_blocks", "batches"),
    [(24, [1, 2]), (72, [1, 2, 4]), (144, [1, 2, 4, 8]), (299, [1, 2, 4, 8, 16]), (4, [1, 2])],
)
def test_batches_that_the_cache_cannot_hold_are_left_out(n_blocks: int, batches: list[int]) -> None:
    info = make_target("llama").info
    info = replace(info, n_blocks=n_blocks, max_model_len=min(info.max_model_len, (n_blocks - 1) * info.block_size))
    costs, steps = answered(info, lambda step: 0.01)
    assert list(costs.curves) == batches
    assert max(block for step in steps for work in step.work for block in work.new_blocks) < n_blocks


@pytest.mark.parametrize("max_model_len", [1, 2, 3, 7, 40])
def test_a_short_context_is_measured_as_far_as_it_reaches(max_model_len: int) -> None:
    made = make_target("llama")
    made.info = replace(made.info, max_model_len=max_model_len)
    costs = measure(made)
    assert list(costs.curves) == list(GRID)
    assert made.n_sequences == 0


def test_the_smallest_cache_there_is_can_be_measured() -> None:
    made = make_target("llama", n_blocks=4, block_size=1)
    made.info = replace(made.info, max_model_len=3)
    assert costs_of_nothing(measure(made)) > 0
    assert made.n_sequences == 0


def costs_of_nothing(costs: StepCosts) -> float:
    return float(costs.seconds(1, [1])[0])


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("stages", [1, 2])
def test_measuring_a_real_target_leaves_no_trace(
    family: str,
    stages: int,
) -> None:
    made = make_target(family, stages=stages, n_blocks=300)
    costs = measure(made)
    assert {batch: len(rows) for batch, (rows, _) in costs.curves.items()} == {b: len(g) for b, g in GRID.items()}
    assert made.n_sequences == 0
    assert 1e-5 < costs_of_nothing(costs) <= costs.seconds(16, [272])[0] < 60
    jobs = [Request(text, SamplingParams(max_tokens=20, stop_ids=(2,)), "spectra-core") for text in random_prompts(4)]
    done = complete_all(make_engine(made), jobs, 4)
    assert [one.token_ids for one in done] == [reference_tokens(family, tuple(text), 20) for text in random_prompts(4)]
