"""A plan on a real (tiny) model: what is recorded, in which order, from which state, and after an interruption."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from app.bench.figures import compare
from app.bench.records import Record, RecordFile, Setting
from app.bench.report import tables
from app.bench.runs import Bench, Plan, rotated
from app.inputs.prompts import Question
from app.inputs.tokenizers import load_tokenizer
from app.speculation.heads import with_model
from engine.errors import ConfigError, SpectraError, UnknownMethodError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.sampling.params import SamplingParams
from engine.target.local import LocalTarget
from speculators.methods import AVAILABLE
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions

QUESTIONS = [
    Question(["The quick brown fox", "jumps over"], 11, "chat"),
    Question(["Snow falls on the quiet town"], 12, "news"),
    Question(["Speculation drafts tokens"], 13, "chat"),
]
METHODS = ("autoregressive", "pld", "remembering")
COLD, WARM = Setting(0.0, False), Setting(0.0, True)


class Remembering:
    """Drafts the texts it saw earlier in the same scope, and notes which scopes it was asked in."""

    name = "remembering"
    needs = Needs()

    def __init__(self, depth: int = 4) -> None:
        self.scopes: list[str] = []
        self._depth = depth
        self._seen: dict[tuple[str, tuple[int, ...]], list[int]] = {}

    def begin(self, request: RequestView) -> None:
        self.scopes.append(request.request.scope)

    def propose(self, request: RequestView, budget: int) -> list[Branch]:
        known = self._seen.get(self._key(request), [])[len(request.context) :]
        return [Branch(known[: min(budget, self._depth)], self.name)] if known and budget else []

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        pass

    def end(self, request: RequestView) -> None:
        self._seen[self._key(request)] = request.context.view.tolist()

    def _key(self, request: RequestView) -> tuple[str, tuple[int, ...]]:
        return request.request.scope, tuple(request.context.view[: request.n_prompt].tolist())


@pytest.fixture
def speculator() -> Remembering:
    return Remembering()


@pytest.fixture
def bench(target: LocalTarget, tiny_checkpoint: Path, speculator: Remembering) -> Callable[..., Bench]:
    """``bench(repeats=2)``: a bench of a small plan with some things changed."""

    def make(**changes: Any) -> Bench:
        plan: dict[str, Any] = {
            "methods": METHODS,
            "settings": [COLD],
            "questions": QUESTIONS,
            "params": SamplingParams(max_tokens=12, seed=3, stop_ids=target.info.spec.eos_ids),
            "warm_passes": 1,
        }
        pool = SpeculatorPool(extra={"remembering": lambda options: speculator})
        made = Plan(**(plan | changes))
        return Bench(target, load_tokenizer(tiny_checkpoint), {s.warm: pool for s in made.settings}, made)

    return make


@pytest.fixture
def run(bench: Callable[..., Bench], tmp_path: Path) -> Callable[..., list[Record]]:
    """Runs a plan from nothing and returns its records."""

    def records(**changes: Any) -> list[Record]:
        with RecordFile(tmp_path / "records.jsonl", {}, restart=True) as file:
            bench(**changes).run(file, lambda: None)
            return file.records

    return records


def test_every_turn_of_every_method_is_recorded_once(run: Callable[..., list[Record]]) -> None:
    records = run(repeats=2, settings=[COLD, Setting(0.8)])
    wanted = {
        (setting, method, repeat, question, turn)
        for setting in (COLD, Setting(0.8))
        for method in METHODS
        for repeat in (0, 1)
        for question, turn in ((0, 0), (0, 1), (1, 0), (2, 0))
    }
    assert {tuple(record.key) for record in records} == wanted
    assert len(records) == len(wanted)
    for record in records:
        question = QUESTIONS[record.index]
        assert (record.question_id, record.category) == (question.question_id, question.category)
        assert len(record.token_ids) == 1 + sum(record.step_tokens)
        assert len(record.step_tokens) == len(record.step_seconds) == len(record.target_seconds)
        assert len(record.step_nodes) == len(record.step_tokens)
        assert all(0 < inner < outer for inner, outer in zip(record.target_seconds, record.step_seconds, strict=True))
        assert record.seconds > sum(record.step_seconds)  # the prefill's time comes on top
        assert max(record.step_nodes) == 0 or not record.is_reference
        assert set(record.by_source) <= {record.method}


def test_methods_write_the_same_and_repeats_sample_anew(run: Callable[..., list[Record]]) -> None:
    records = run(repeats=2, settings=[COLD, Setting(0.8)])
    texts: dict[Any, set[tuple[int, ...]]] = {}
    for record in records:
        texts.setdefault((record.temperature, record.repeat, record.index, record.turn), set()).add(
            tuple(record.token_ids)
        )
    assert {len(written) for written in texts.values()} == {1}
    assert all(texts[0.0, 0, i, 0] == texts[0.0, 1, i, 0] for i in range(3))
    assert any(texts[0.8, 0, i, 0] != texts[0.8, 1, i, 0] for i in range(3))


def test_raw_runs_first_turns_only(run: Callable[..., list[Record]]) -> None:
    assert {(record.index, record.turn) for record in run(raw=True)} == {(0, 0), (1, 0), (2, 0)}


def test_batches_record_the_same_texts(run: Callable[..., list[Record]]) -> None:
    alone = {record.key: record.token_ids for record in run()}
    together = {record.key: record.token_ids for record in run(batch_size=3)}
    assert together == alone


def test_methods_take_turns_in_changing_order(run: Callable[..., list[Record]]) -> None:
    order = [(record.index, record.method) for record in run() if record.turn == 0]
    assert order == [(i, method) for i in range(3) for method in rotated(METHODS, i)]
    assert {rotated(METHODS, i)[0] for i in range(3)} == set(METHODS)


def test_a_cold_turn_knows_nothing_of_the_others(run: Callable[..., list[Record]], speculator: Remembering) -> None:
    records = run(repeats=3)
    assert len(set(speculator.scopes)) == len(speculator.scopes) == 3 * 4 + 1  # one to warm the target up
    assert not any(record.by_source for record in records if record.method == "remembering")


def test_cold_figures_of_real_methods_do_not_depend_on_what_ran_before(
    target: LocalTarget, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    pool = SpeculatorPool(_options(target))
    methods = [method for method in AVAILABLE if method != "auto" and _runs(pool, method)]  # auto goes by the clock
    assert {"pld", "spectra-core"} <= set(methods)
    steps = []
    for order in (QUESTIONS[1:], QUESTIONS[:0:-1]):
        plan = Plan(methods, [COLD], order, SamplingParams(max_tokens=40), max_nodes=24)
        with RecordFile(tmp_path / "records.jsonl", {}, restart=True) as file:
            Bench(target, load_tokenizer(tiny_checkpoint), {False: pool}, plan).run(file, lambda: None)
            steps.append({(r.method, r.question_id): (r.step_tokens, r.by_source) for r in file.records})
            assert not any(record.failures for record in file.records)
    assert steps[0] == steps[1]


def test_warm_methods_of_the_product_learn_from_earlier_turns(
    target: LocalTarget, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    pools = {False: SpeculatorPool(), True: SpeculatorPool(SpeculatorOptions().warm())}
    methods, params = ["suffix", "token-recycling"], SamplingParams(max_tokens=40)
    plan = Plan(methods, [COLD, WARM], QUESTIONS[1:], params, warm_passes=1)
    with RecordFile(tmp_path / "records.jsonl", {}) as file:
        Bench(target, load_tokenizer(tiny_checkpoint), pools, plan).run(file, lambda: None)
        found = compare(file.records)
    for cold, warm in zip(found[COLD], found[WARM], strict=True):
        assert cold.total.tokens_per_forward is not None
        assert warm.total.tokens_per_forward is not None
        assert warm.total.tokens_per_forward > 1.2 * cold.total.tokens_per_forward


def _options(target: LocalTarget) -> SpeculatorOptions:
    """Settings with which the most methods run."""
    return with_model(SpeculatorOptions(), target.info.spec, ((1, 0),))


def _runs(pool: SpeculatorPool, method: str) -> bool:
    """Whether a method needs nothing that is not there."""
    try:
        pool.needs(method)
    except SpectraError:
        return False
    return True


def test_a_warm_turn_knows_the_passes_before_it(run: Callable[..., list[Record]], speculator: Remembering) -> None:
    records = run(settings=[COLD, WARM], repeats=2)
    warm = [record for record in records if record.method == "remembering" and record.warm]
    assert len(warm) == 2 * 4
    for record in warm:  # every draft is right, and at most as long as the depth
        assert record.by_source["remembering"]["accepted"] == sum(record.step_tokens) - len(record.step_tokens)
        assert max(record.step_tokens) == 5
    cold = [record for record in records if record.method == "remembering" and not record.warm]
    assert not any(record.by_source for record in cold)
    warm_spaces = speculator.scopes[-8:]  # the last repeat: one pass to learn, one that is measured
    assert len(set(warm_spaces)) == 1
    assert len(set(speculator.scopes)) == 2 + 2 * 4 + 2


def test_without_a_pass_before_it_a_warm_pass_knows_earlier_turns_only(run: Callable[..., list[Record]]) -> None:
    twice = [QUESTIONS[1], QUESTIONS[2], QUESTIONS[1]]
    records = [r for r in run(settings=[WARM], questions=twice, warm_passes=0) if r.method == "remembering"]
    assert [bool(record.by_source) for record in records] == [False, False, True]


class Failing(Remembering):
    """Fails on every request's second draft."""

    def propose(self, request: RequestView, budget: int) -> list[Branch]:
        if len(request.context) > request.n_prompt + 1:
            raise RuntimeError("on purpose")
        return []


def test_a_method_that_fails_is_told(
    target: LocalTarget, tiny_checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    params = SamplingParams(max_tokens=6)
    plan = Plan(("autoregressive", "remembering"), [COLD], QUESTIONS[1:], params)
    pool = SpeculatorPool(extra={"remembering": lambda options: Failing()})
    with RecordFile(tmp_path / "records.jsonl", {}) as file:
        Bench(target, load_tokenizer(tiny_checkpoint), {False: pool}, plan).run(file, lambda: None)
        [reference, failing] = compare(file.records)[COLD]
        assert (reference.total.failures, failing.total.failures) == (0, 2)
        assert "remembering FAILED 2 times" in tables(compare(file.records))
    assert "on purpose" in caplog.text


def test_an_interrupted_run_goes_on_where_it_stopped(bench: Callable[..., Bench], tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with RecordFile(path, {}) as file:
        whole = bench(repeats=2).work(file)
        with pytest.raises(KeyboardInterrupt):
            bench(repeats=2).run(file, _stop_after(7))
        first = file.records
    assert whole == 2 * 3 * 4
    assert len(first) == 7
    calls: list[int] = []
    with RecordFile(path, {}) as file:
        again = bench(repeats=2)
        left = again.work(file)
        again.run(file, lambda: calls.append(1))
        assert len(calls) == left == whole - 7
        assert file.records[:7] == first
        assert len(file.records) == whole
        assert again.work(file) == 0
        again.run(file, _stop_after(0))  # nothing is left to run


def test_a_question_cut_between_its_turns_is_run_again_as_a_whole(bench: Callable[..., Bench], tmp_path: Path) -> None:
    with RecordFile(tmp_path / "records.jsonl", {}) as file:
        with pytest.raises(KeyboardInterrupt):
            bench().run(file, _stop_after(1))
        calls: list[int] = []
        again = bench()
        assert again.work(file) == 3 * 4
        again.run(file, lambda: calls.append(1))
        assert len(calls) == 3 * 4
        assert len(file.records) == 3 * 4


def test_a_warm_pass_that_was_cut_is_measured_from_its_start(bench: Callable[..., Bench], tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with RecordFile(path, {}) as file:
        with pytest.raises(KeyboardInterrupt):
            bench(settings=[WARM]).run(file, _stop_after(3 * 4 + 5))
        assert len(file.records) == 5
    with RecordFile(path, {}) as file:
        again = bench(settings=[WARM])
        assert again.work(file) == 2 * 3 * 4
        assert file.records == []
        again.run(file, lambda: None)
        warm = [record for record in file.records if record.method == "remembering"]
        assert all(record.by_source for record in warm)


def test_what_cannot_run_is_refused(bench: Callable[..., Bench]) -> None:
    with pytest.raises(UnknownMethodError, match="magic"):
        bench(methods=("autoregressive", "magic")).check()
    with pytest.raises(ConfigError, match=r"question 1 \(long\) has \d+ tokens"):
        bench(questions=[QUESTIONS[0], Question(["word " * 5000], "long")]).check()
    bench().check()


def test_rotation() -> None:
    orders = [rotated("abc", i) for i in range(4)]
    assert orders == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]
    assert all(one != other for one, other in pairwise(orders))


def _stop_after(n: int) -> Callable[[], None]:
    """Ctrl-C when ``n`` turns are done."""
    left = [n]

    def done() -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise KeyboardInterrupt

    return done
