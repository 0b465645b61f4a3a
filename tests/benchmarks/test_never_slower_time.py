"""The virtual clock of the stand for "is it ever slower?": what a step takes, and when a stream has its text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.never_slower.cells import NONE, Cell, Record
from benchmarks.never_slower.engines import VirtualEngine
from benchmarks.never_slower.machines import TRIP_S, Machine, VirtualStages, simulated_costs
from benchmarks.never_slower.streams import Run, Wanted
from engine.protocol import Needs
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.simulated.profile import PipelineProfile
from engine.step import SequenceStart, Step, Work
from engine.tree import TokenTree
from speculators.pool import SpeculatorPool
from speculators.testing import AlwaysRight
from tests.support.engines import make_engine, make_target

CELL = Cell("8b-h200", "chat", 0.0, 4)
PROMPTS = [[5, 6, 7, 8], [9, 10, 11, 12]]
TOKENS = 24


def answers(prompts: Sequence[list[int]], n: int) -> dict[tuple[int, ...], list[int]]:
    engine = make_engine(make_target("llama"))
    params = SamplingParams(max_tokens=n)
    return {tuple(ids): engine.complete(Request(ids, params, NONE)).token_ids for ids in prompts}


def virtual_run(method: str, machine: Machine, depth: int, prompts: Sequence[list[int]]) -> Record:
    """On a host that takes no time."""
    target = make_target("llama")
    known = answers(prompts, 8 * TOKENS)
    pool = SpeculatorPool(extra={"always-right": lambda _: AlwaysRight(known, depth)})
    options = SchedulerOptions(n_micro_batches=machine.profile.stages, prefix_cache=False)
    costs = simulated_costs(machine, target.info)
    engine = VirtualEngine(target, pool, options, costs, machine, clock=lambda: 0.0)
    cell = Cell("8b-h200", "chat", 0.0, len(prompts))
    wanted = Wanted(prompts, range(len(prompts)), TOKENS, (), 300, 63)
    run = Run(cell, 0, method, engine, wanted)
    run.advance(float("inf"))
    run.close()
    assert not pool.n_live
    return run.record()


@pytest.mark.parametrize(("depth", "steps"), [(2, 8), (4, 5)])
def test_a_method_that_is_always_right_is_as_much_faster_as_its_steps_are_fewer(depth: int, steps: int) -> None:
    machine = Machine(PipelineProfile(0.5))
    plain, drafted = (virtual_run(method, machine, depth, PROMPTS[:1]) for method in (NONE, "always-right"))
    step_s = 0.5 + TRIP_S
    assert plain.seconds == pytest.approx([TOKENS * step_s])
    assert plain.first_s == drafted.first_s == pytest.approx([step_s])
    assert drafted.seconds == pytest.approx([(1 + steps) * step_s])
    assert drafted.digest == plain.digest
    assert (plain.forwards, drafted.forwards) == (TOKENS - 1, steps)


def test_nodes_and_what_is_read_back_take_the_time_that_the_machine_says() -> None:
    profile = PipelineProfile(0.5, flat_sequences=8, node_s=0.01, prompt_row_s=0.001, context_s=0.0001)
    stages = VirtualStages(Machine(profile, node_read_s=0.02, prompt_read_s=0.003))
    starts = [SequenceStart(0, SamplingParams(), 8, Needs(node_top_k=4, prompt_top_k=4)),
              SequenceStart(1, SamplingParams(), 8, Needs())]  # fmt: skip
    assert stages.seconds(Step(0, [Work(i, 0, [5] * 8) for i in (0, 1)], starts)) == pytest.approx(
        (0.5 + 16 * 0.001 + 8 * 0.003,)
    )
    tree = TokenTree([5, 6], [-1, 0])
    works = [Work(0, 8, [5], tree), Work(1, 8, [5], tree)]
    assert stages.seconds(Step(1, works)) == pytest.approx((0.5 + 4 * 0.01 + 16 * 0.0001 + 3 * 0.02,))
    quiet = [Work(0, 8, [5], tree, reads_back=False)]
    assert stages.seconds(Step(2, quiet)) == pytest.approx((0.5 + 2 * 0.01 + 8 * 0.0001,))
    assert stages.seconds(Step(3, [Work(0, 8, [5])], ends=[0])) == pytest.approx((0.5 + 0.001,))  # another sequence


def test_a_pipeline_is_as_fast_as_its_stages_for_one_stream_and_keeps_them_busy_for_two() -> None:
    machine = Machine(PipelineProfile(0.5, stages=2))
    one = virtual_run(NONE, machine, 0, PROMPTS[:1])
    assert one.seconds == pytest.approx([TOKENS * (1.0 + TRIP_S)])
    both = virtual_run(NONE, machine, 0, PROMPTS)
    assert max(both.seconds) < 1.1 * one.seconds[0]


def test_host_time_passes_between_steps() -> None:
    target, machine = make_target("llama"), Machine(PipelineProfile(0.5))
    ticks = iter(range(1 << 30))
    engine = VirtualEngine(
        target, SpeculatorPool(), SchedulerOptions(), simulated_costs(machine, target.info), machine,
        clock=lambda: float(next(ticks)),
    )  # fmt: skip
    run = Run(CELL._replace(streams=1), 0, NONE, engine, Wanted(PROMPTS[:1], [0], TOKENS, (), 300, 63))
    run.advance(float("inf"))
    record = run.record()
    # Each step: one second to send it, one at the stage for its message and one for its answer, one to take that in;
    # and one, while it is on its way, to find that no other should be sent.
    assert record.seconds[0] == pytest.approx(1 + TOKENS * (4 + 0.5 + TRIP_S))
    assert record.host_s == 1 + TOKENS * 3


def test_streams_go_on_until_the_slowest_has_its_text_and_texts_end_where_they_should() -> None:
    known = answers(PROMPTS, TOKENS)
    end = known[tuple(PROMPTS[0])][5]
    target, machine = make_target("llama"), Machine(PipelineProfile(0.5, flat_sequences=8))
    engine = VirtualEngine(
        target, SpeculatorPool(), SchedulerOptions(), simulated_costs(machine, target.info), machine, lambda: 0.0
    )
    run = Run(CELL._replace(streams=2), 0, NONE, engine, Wanted(PROMPTS, [0, 1], TOKENS, (end,), 300, 63))
    run.advance(float("inf"))
    for text, prompt in zip(run.texts, PROMPTS, strict=True):
        full = known[tuple(prompt)]
        assert text == tuple(full[: full.index(end) + 1] if end in full else full)
    assert engine.drafted.trees == 2 * (TOKENS - 1)
