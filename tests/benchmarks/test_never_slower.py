"""The stand for "is it ever slower?": its statistics, its virtual clock, what it lets pass and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.never_slower.__main__ import main, methods_of
from benchmarks.never_slower.cells import AUTO, CPU, NONE, Cell, Record, grid
from benchmarks.never_slower.engines import VirtualEngine
from benchmarks.never_slower.machines import TRIP_S, Machine, VirtualStages, simulated_costs
from benchmarks.never_slower.prompts import KINDS, prompts_of
from benchmarks.never_slower.record_file import RecordFile, Turn
from benchmarks.never_slower.report import report
from benchmarks.never_slower.statistics import compare, compare_with_best, pooled
from benchmarks.never_slower.streams import Run, Wanted
from benchmarks.never_slower.summary import Summary, categories, hopeful, misses
from engine.errors import ConfigError
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.simulated.profile import PipelineProfile
from engine.step import SequenceStart, Step, Work
from engine.tree import TokenTree
from speculators.pool import SpeculatorPool
from speculators.testing import AlwaysRight
from tests.support.engines import make_engine, make_target

CELL = Cell("8b-h200", "chat", 0.0, 4)


# -- statistics ------------------------------------------------------------------------------------------------------


def test_a_ratio_is_of_sums_and_without_noise_its_interval_is_a_point() -> None:
    ours = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    found = compare([[1.5 * s for s in turn] for turn in ours], ours)
    assert found.ratio == pytest.approx(1.5)
    assert found.interval.low == pytest.approx(1.5) == found.interval.high
    uneven = compare([[3.0, 1.0]], [[1.0, 1.0]])
    assert uneven.ratio == 2.0
    assert uneven.interval.low < 1.2
    assert uneven.interval.high > 2.8


def test_intervals_hold_the_true_ratio_as_often_as_they_say() -> None:
    chance = np.random.default_rng(5)
    held = 0
    for _ in range(100):
        work = chance.gamma(4.0, 1.0, (12, 8))  # what prompts cost
        busy = chance.lognormal(0.0, 0.05, (12, 1))  # what the machine does to a method's turn
        others = 1.1 * work * chance.lognormal(0.0, 0.1, work.shape) * busy
        interval = compare(others.tolist(), work.tolist()).interval
        held += interval.low <= 1.1 * np.exp(0.5 * (0.1**2 + 0.05**2)) <= interval.high
    assert held >= 88


def test_noise_of_whole_turns_widens_the_interval() -> None:
    chance = np.random.default_rng(1)
    work = np.ones((8, 64))
    alone = compare((work * chance.lognormal(0, 0.1, work.shape)).tolist(), work.tolist()).interval
    shared = compare((work * chance.lognormal(0, 0.1, (8, 1))).tolist(), work.tolist()).interval
    assert shared.half_width > 3 * alone.half_width


def test_of_equal_methods_the_luckiest_is_not_called_better() -> None:
    chance = np.random.default_rng(2)
    ratios, naive = [], []
    for _ in range(60):
        fixed = {str(i): chance.lognormal(0, 0.1, (8, 1)) for i in range(6)}
        ours = chance.lognormal(0, 0.1, (8, 1))
        _, found = compare_with_best({name: s.tolist() for name, s in fixed.items()}, ours.tolist())
        ratios.append(found.ratio)
        naive.append(min(s.sum() for s in fixed.values()) / ours.sum())
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.02)
    assert np.mean(naive) < 0.97


def test_the_best_fixed_method_is_chosen_on_the_other_half() -> None:
    fixed = {"even": [[1.0], [9.0], [1.0], [9.0]], "odd": [[9.0], [1.0], [9.0], [1.0]]}
    best, found = compare_with_best(fixed, [[1.0]] * 4)
    assert best == ["even", "odd"]
    assert found.ratio == 9.0  # each was best by luck
    best, found = compare_with_best({"a": [[1.0, 2.0, 1.0, 2.0]], "b": [[3.0] * 4]}, [[1.0] * 4])  # halves of streams
    assert best == ["a", "a"]
    assert found.ratio == 1.5


def test_pooling_is_the_geometric_mean_and_narrows() -> None:
    chance = np.random.default_rng(3)
    comparisons = [
        compare((ratio * chance.lognormal(0, 0.1, (8, 4))).tolist(), np.ones((8, 4)).tolist()) for ratio in (0.5, 2.0)
    ]
    found = pooled(comparisons)
    assert found.ratio == pytest.approx(1.0, rel=0.05)
    assert found.half_width < comparisons[0].interval.half_width


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


# -- virtual time ----------------------------------------------------------------------------------------------------

PROMPTS = [[5, 6, 7, 8], [9, 10, 11, 12]]
TOKENS = 24


def answers(prompts: Sequence[list[int]], n: int) -> dict[tuple[int, ...], list[int]]:
    engine = make_engine(make_target("llama"))
    from engine.request import Request

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
    document = json.loads(capsys.readouterr().out.rpartition("\n{")[2].join(["{", ""]))
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
