"""Step times: linear between the measured points and beyond them, and unchanged by their file."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.step_cost import StepCosts, read_costs, write_costs

COSTS = StepCosts({1: ((1, 2, 5), (1.0, 1.5, 6.0)), 4: ((4, 8), (2.0, 4.0)), 16: ((16, 32), (8.0, 8.0))})


RISING = StepCosts({1: ((1, 9), (1.0, 1.8)), 4: ((4, 12), (1.6, 2.4)), 16: ((16, 48), (5.0, 8.2))})
MORE = (5.0 - (1.6 + 12 * 0.1)) / 12  # seconds per further sequence beyond 16, at 16 rows


@pytest.mark.parametrize(
    ("costs", "batch", "rows", "seconds"),
    [
        (COSTS, 1, [1, 2, 3, 4, 5], [1.0, 1.5, 3.0, 4.5, 6.0]),
        (COSTS, 1, [7, 9], [6.0 + 2 * 1.5, 6.0 + 4 * 1.5]),  # beyond: the steepest slope to the last point
        (COSTS, 16, [16, 24, 320], [8.0, 8.0, 8.0]),
        (COSTS, 1, [0], [1.0]),  # no step takes less than the first point
        (COSTS, 2, [8], [2 / 3 * (6.0 + 3 * 1.5) + 1 / 3 * 4.0]),
        (COSTS, 64, [64, 200], [8.0, 8.0]),
        (StepCosts({4: ((4, 8), (2.0, 4.0))}), 1, [4, 6, 10], [2.0, 3.0, 5.0]),
        (StepCosts({4: ((4, 8), (2.0, 4.0))}), 9, [4, 6, 10], [2.0, 3.0, 5.0]),
        (StepCosts({1: ((1,), (0.5,))}), 3, [1, 9, 99], [0.5, 0.5, 0.5]),
        (RISING, 64, [64, 100], [5.0 + 4.8 + 48 * MORE, 5.0 + 8.4 + 48 * MORE]),
    ],
)
def test_seconds_between_and_beyond_the_points(
    costs: StepCosts, batch: int, rows: list[int], seconds: list[float]
) -> None:
    assert costs.seconds(batch, rows) == pytest.approx(seconds)


def test_context_read_back_and_chunks_of_prompt_add_what_was_measured() -> None:
    near, far = ((1, 64), (1.0, 1.63)), ((1, 64), (1.2, 2.46))  # 0.19 + 0.01 a row, with 2000 tokens more of context
    costs = StepCosts({1: ((1, 5), (1.0, 1.4)), 8: ((8, 40), (1.5, 4.7))}, {0: near, 2000: far})
    assert costs.seconds(8, [8, 24], 256).tolist() == costs.seconds(8, [8, 24]).tolist()
    grown = costs.seconds(8, [8, 24], 1256) - costs.seconds(8, [8, 24])
    assert grown == pytest.approx([8 * 0.2 / 2, 8 * (0.2 + 2 * 0.01) / 2])
    assert costs.seconds(8, [8], 4256)[0] == pytest.approx(costs.seconds(8, [8])[0] + 2 * 8 * 0.2)
    assert COSTS.seconds(4, [4], 9000).tolist() == COSTS.seconds(4, [4]).tolist()  # no chunk was measured
    assert costs.prompt_seconds(0, [1, 64, 127]) == pytest.approx([1.0, 1.63, 2.26])
    assert costs.prompt_seconds(1000, [1, 64]) == pytest.approx([1.1, 2.045])
    assert costs.prompt_seconds(4000, [1, 64]) == pytest.approx([1.4, 3.29])
    with pytest.raises(ValueError, match="measure a step with prompt rows"):
        COSTS.prompt_seconds(0, [1])
    curves = {1: ((1, 5), (1.0, 1.4)), 4: ((4, 8), (2.0, 2.5)), 16: ((16, 32), (8.0, 9.0))}
    assert StepCosts(curves, {}, {1: 0.7, 16: 6.2}).read_back == pytest.approx((0.2, 0.1))
    assert StepCosts(curves, {}, {4: 1.5}).read_back == pytest.approx((0.5, 0.0))
    assert StepCosts(curves, {}, {1: 1.5, 16: 9.0}).read_back == StepCosts(curves).read_back == (0.0, 0.0)
    assert COSTS.by_batch(20, 2)[[0, 3, 9, 15, 19]] == pytest.approx([1.5, 4.0, 6.0, 8.0, 8.0 + 4 / 3])


@pytest.mark.parametrize(
    ("seconds", "most", "nodes"),
    [
        ((1.0, 1.05, 1.2, 1.55, 2.3, 3.9), 64, 8),  # of 1, 5, 9, 17, 33 and 65 rows
        ((1.0, 1.05, 1.1, 1.2, 2.3, 3.9), 64, 16),
        ((1.0, 1.05, 1.1, 1.2, 2.3, 3.9), 4, 4),
        ((1.0, 1.0, 1.0, 1.0, 1.0, 1.0), 64, 64),
        ((1.0, 9.0, 17.0, 33.0, 65.0, 129.0), 64, 2),
        ((1.0, 1.0, 1.0, 1.0, 1.0, 1.0), 1, 1),
    ],
)
def test_default_nodes_give_most_tokens_per_second(seconds: tuple[float, ...], most: int, nodes: int) -> None:
    assert StepCosts({1: ((1, 5, 9, 17, 33, 65), seconds)}).best_nodes(most) == nodes


@pytest.mark.parametrize(
    "wrong",
    [
        {1: ((), ())},
        {1: ((1, 2), (1.0,))},
        {1: ((1, 1), (1.0, 2.0))},
        {1: ((1, 2), (2.0, 1.0))},
        {1: ((1, 2), (0.0, 1.0))},
        {1: ((1, 2), (1.0, float("nan")))},
        {1: ((1, 2), ("a", "b"))},
    ],
    ids=str,
)
def test_a_malformed_curve_is_refused(wrong: dict[int, tuple[tuple[int, ...], tuple[float, ...]]]) -> None:
    for arguments in ((wrong,), (COSTS.curves, wrong), ({},), ({0: ((1, 2), (1.0, 2.0))},)):
        with pytest.raises(ValueError):
            StepCosts(*arguments)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00",
        b"{",
        b"[]",
        b"{}",
        b'{"1": [[1, 2], [0.1, 0.2]]}',  # an earlier format
        b'{"format": 2, "curves": {"1": [[1], [0.1]]}, "prompts": {}}',
        b'{"format": 3, "curves": {"one": [[1], [0.1]]}, "prompts": {}, "plain": {}}',
        b'{"format": 3, "curves": {"1": 5}, "prompts": {}, "plain": {}}',
        b'{"format": 3, "curves": {"1": [[1, 2], [0.1, null]]}, "prompts": {}, "plain": {}}',
        b'{"format": 3, "curves": {"1": [[1], [0.1]]}, "prompts": {}}',
        b'{"format": 3, "curves": {"1": [[1], [0.1]]}, "prompts": {}, "plain": {"1": -1}}',
        b'{"format": 3, "curves": {"1": [[1], [0.1]]}, "prompts": {"-1": [[1], [0.1]]}, "plain": {}}',
        b'{"format": 3, "curves": {}, "prompts": {}, "plain": {}}',
    ],
    ids=str,
)
def test_a_broken_or_foreign_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "costs.json").write_bytes(content)
    assert read_costs(tmp_path / "costs.json") is None
    assert read_costs(tmp_path / "missing.json") is None
    assert read_costs(tmp_path) is None


def test_costs_are_unchanged_by_their_file_and_a_failed_write_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = tmp_path / "some" / "folder" / "model-0.1.0-host.name.json"
    for costs in (COSTS, RISING, StepCosts(COSTS.curves, {7: ((1, 2), (0.1, 0.2))}, {1: 0.5}, 0.25)):
        write_costs(kept, costs)
        assert read_costs(kept) == costs
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]  # no temporary file is left
    (tmp_path / "file").write_text("in the way")
    write_costs(tmp_path / "file" / "costs.json", COSTS)
    (tmp_path / "folder.json").mkdir()
    write_costs(tmp_path / "folder.json", COSTS)
    assert [record.message.partition(":")[0] for record in caplog.records] == ["step times were not saved"] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.json", "some"]
