"""Step times of a target are measured by steps that a scheduler could have made, and leave no state."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.step import Step
from engine.step_cost import StepCosts
from engine.target_model.info import TargetInfo
from engine.target_model.step_timing import GRID, measure, measurement
from tests.support.engines import make_target


def answered(info: TargetInfo, seconds: Callable[[Step], float]) -> tuple[StepCosts, list[Step]]:
    """Costs of a target whose steps take ``seconds(step)``, and all its steps."""
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
    info = replace(make_target("llama").info, n_blocks=1300)
    costs, _ = answered(info, lambda step: 1e-3 * len(step.work) + 1e-4 * n_rows(step))
    assert {batch: [rows // batch - 1 for rows in curve[0]] for batch, curve in costs.curves.items()} == {
        batch: list(nodes) for batch, nodes in GRID.items()
    }
    for batch, (rows, seconds) in costs.curves.items():
        assert seconds == pytest.approx([1e-3 * batch + 1e-4 * n for n in rows])
    assert {context: rows for context, (rows, _) in costs.prompts.items()} == {0: (1, 64, 256)}  # 500 tokens at most
    assert costs.prompts[0][1] == pytest.approx([1e-3 + 1e-4 * n for n in (1, 64, 256)])


def test_large_steps_of_a_slow_target_are_not_measured() -> None:
    info = replace(make_target("llama").info, n_blocks=1300)
    costs, steps = answered(info, lambda step: 0.1 * n_rows(step))
    assert costs.prompts[0][0] == (1, 64)
    assert sum(0.1 * n_rows(step) for step in steps if step.work[:1] and step.work[0].tree is not None) < 60


class Noise:
    """Seconds of a step on a busy machine: a third of them too long, and the first of every size too short."""

    def __init__(self) -> None:
        self.chance, self.seen = random.Random(3), set[tuple[int, int]]()

    def __call__(self, step: Step) -> float:
        size = len(step.work), n_rows(step)
        is_first = size not in self.seen
        self.seen.add(size)
        return 1e-5 if is_first else 1e-4 + 1e-5 * n_rows(step) + (0.01 if self.chance.random() < 0.3 else 0.0)


def test_noise_and_first_steps_do_not_count() -> None:
    costs, _ = answered(make_target("llama").info, Noise())
    for rows, seconds in costs.curves.values():
        assert seconds == pytest.approx([1e-4 + 1e-5 * n for n in rows])
    # Noise only adds: a smaller step is not slower than a larger one.
    costs, _ = answered(make_target("llama").info, lambda step: 1.0 / (1 + n_rows(step)))
    for rows, seconds in costs.curves.values():
        assert seconds == pytest.approx([1.0 / (1 + rows[-1])] * len(rows))


def test_every_step_is_one_that_a_scheduler_could_have_made() -> None:
    info = make_target("llama").info
    _, steps = answered(info, lambda step: 0.01)
    assert [step.step_id for step in steps] == sorted({step.step_id for step in steps})
    held: dict[int, int] = {}  # sequence -> capacity of its blocks, tokens
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
    [
        (24, [1, 2]),
        (72, [1, 2, 4]),
        (144, [1, 2, 4, 8]),
        (299, [1, 2, 4, 8, 16]),
        (1300, [1, 2, 4, 8, 16, 64]),
        (4, [1, 2]),
    ],
)
def test_batches_that_the_cache_cannot_hold_are_left_out(n_blocks: int, batches: list[int]) -> None:
    info = make_target("llama").info
    info = replace(info, n_blocks=n_blocks, max_model_len=min(info.max_model_len, (n_blocks - 1) * info.block_size))
    costs, steps = answered(info, lambda step: 0.01)
    assert list(costs.curves) == batches
    assert max(block for step in steps for work in step.work for block in work.new_blocks) < n_blocks


@pytest.mark.parametrize(
    ("family", "stages", "max_model_len", "shape"),
    [
        ("llama", 2, 500, {"n_blocks": 1300}),
        ("gemma3", 1, 40, {}),
        ("llama", 1, 1, {}),
        ("llama", 1, 3, {"n_blocks": 4, "block_size": 1}),
    ],
)
def test_a_real_target_is_measured_and_has_no_state_left(
    family: str, stages: int, max_model_len: int, shape: dict[str, int]
) -> None:
    made = make_target(family, stages=stages, **shape)
    made.info = replace(made.info, max_model_len=max_model_len)
    costs = measure(made)
    assert "block_size" in shape or list(costs.curves) == list(GRID)
    assert costs.seconds(1, [1])[0] > 0
    assert made.n_sequences == 0
