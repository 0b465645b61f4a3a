"""Step times of a target: measured by steps that a scheduler could have made, without leaving a trace."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.step import Step
from engine.step_cost import StepCosts
from engine.target.info import TargetInfo
from engine.target.step_timing import GRID, PROMPT_ROWS, measure, measurement
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts, reference_tokens


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
