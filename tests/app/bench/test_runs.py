"""A plan on a real (tiny) model: which turns are recorded, in which order, from which state, after an interruption."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.bench.records import BenchSetting, TurnRecord, open_records
from app.bench.runs import BenchPlan, BenchRunner
from app.bench.schedule import recorded, rotated
from app.inputs.prompts import Question
from app.inputs.tokenizers import load_tokenizer
from engine.errors import ConfigError, UnknownMethodError
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.sampling.params import SamplingParams
from engine.target_model.local import LocalTarget
from engine.target_model.options import GIB, TargetOptions
from speculators.pool import SpeculatorPool

QUESTIONS = [
    Question(["The quick brown fox", "jumps over"], 11, "chat"),
    Question(["Snow falls on the quiet town"], 12, "news"),
    Question(["Speculation drafts tokens"], 13, "chat"),
]
TURNS = ((0, 0), (0, 1), (1, 0), (2, 0))
METHODS = ("autoregressive", "pld", "remembering")
N = len(TURNS) * len(METHODS)  # records of one setting and repeat
COLD, WARM, SAMPLED = BenchSetting(0.0, False), BenchSetting(0.0, True), BenchSetting(0.8)


@pytest.fixture(scope="module")
def target(tiny_checkpoint: Path) -> LocalTarget:
    return LocalTarget.load(TargetOptions(str(tiny_checkpoint), kv_bytes=GIB // 16), tiny_checkpoint)


class Remembering:
    """Drafts the texts that it saw earlier in the same scope, and notes the scopes."""

    name = "remembering"
    needs = Needs()
    depth = 4

    def __init__(self) -> None:
        self.scopes: list[str] = []
        self._seen: dict[tuple[str, tuple[int, ...]], list[int]] = {}

    def begin(self, request: RequestView) -> None:
        self.scopes.append(request.request.scope)

    def propose(self, request: RequestView, budget: int) -> list[Branch]:
        known = self._seen.get(self._key(request), [])[len(request.context) :]
        return [Branch(known[: min(budget, self.depth)], self.name)] if known and budget else []

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        pass

    def end(self, request: RequestView) -> None:
        self._seen[self._key(request)] = request.context.view.tolist()

    def _key(self, request: RequestView) -> tuple[str, tuple[int, ...]]:
        return request.request.scope, tuple(request.context.view[: request.n_prompt].tolist())


@pytest.fixture
def speculator() -> Remembering:
    return Remembering()


MakeBench = Callable[..., BenchRunner]


@pytest.fixture
def bench(target: LocalTarget, tiny_checkpoint: Path, speculator: Remembering) -> MakeBench:
    """``bench(repeats=2)``: a bench of a small plan with changes."""

    def make(pools: dict[bool, SpeculatorPool] | None = None, **changes: Any) -> BenchRunner:
        plan: dict[str, Any] = {"methods": METHODS, "settings": [COLD], "questions": QUESTIONS, "warm_passes": 1}
        plan["params"] = SamplingParams(max_tokens=12, seed=3, stop_ids=target.info.spec.eos_ids)
        pool = SpeculatorPool(extra={"remembering": lambda options: speculator})
        made = BenchPlan(**(plan | changes))
        return BenchRunner(
            target, load_tokenizer(tiny_checkpoint), pools or {s.warm: pool for s in made.settings}, made
        )

    return make


@pytest.fixture
def run(bench: MakeBench, tmp_path: Path) -> Callable[..., list[TurnRecord]]:
    """Runs a plan from the start and returns its records."""

    def records(**changes: Any) -> list[TurnRecord]:
        with open_records(tmp_path / "records.jsonl", {}, restart=True) as file:
            bench(**changes).run(file, lambda: None)
            return file.records

    return records


Run = Callable[..., list[TurnRecord]]


def test_every_turn_of_every_method_is_recorded_once_with_the_same_text(run: Run) -> None:
    records = run(repeats=2, settings=[COLD, SAMPLED])
    keys = [tuple(record.key) for record in records]
    expected = itertools.product((COLD, SAMPLED), METHODS, (0, 1), TURNS)
    assert sorted(keys) == sorted((setting, method, repeat, *turn) for setting, method, repeat, turn in expected)
    texts: dict[Any, set[tuple[int, ...]]] = {}
    for record in records:
        question = QUESTIONS[record.index]
        assert (record.question_id, record.category) == (question.question_id, question.category)
        assert len(record.token_ids) == 1 + sum(record.step_tokens)
        assert len(record.step_tokens) == len(record.step_seconds) == len(record.target_seconds)
        assert len(record.step_nodes) == len(record.step_tokens)
        assert max(record.step_nodes) == 0 or not record.is_reference
        assert set(record.by_source) <= {record.method}
        turn = (record.temperature, record.repeat, record.index, record.turn)
        texts.setdefault(turn, set()).add(tuple(record.token_ids))
    assert {len(written) for written in texts.values()} == {1}
    assert all(texts[0.0, 0, i, 0] == texts[0.0, 1, i, 0] for i in range(3))
    assert any(texts[0.8, 0, i, 0] != texts[0.8, 1, i, 0] for i in range(3))


def test_batches_record_the_same_texts_in_rotated_order_of_methods(run: Run, speculator: Remembering) -> None:
    alone = run()
    order = [(record.index, record.method) for record in alone if record.turn == 0]
    assert order == [(i, method) for i in range(3) for method in rotated(METHODS, i)]
    assert len(set(speculator.scopes)) == len(speculator.scopes)  # a cold turn learns nothing from others
    assert {r.key: r.token_ids for r in run(batch_size=3)} == {r.key: r.token_ids for r in alone}
    assert {(record.index, record.turn) for record in run(raw=True)} == {(0, 0), (1, 0), (2, 0)}


def test_a_warm_turn_learns_from_earlier_passes_and_turns(run: Run, speculator: Remembering) -> None:
    records = [r for r in run(settings=[COLD, WARM], repeats=2) if r.method == "remembering"]
    warm = [record for record in records if record.warm]
    assert len(warm) == 2 * 4
    for record in warm:  # every draft is right
        assert record.by_source["remembering"]["accepted"] == sum(record.step_tokens) - len(record.step_tokens)
        assert max(record.step_tokens) == 1 + Remembering.depth
    assert not any(record.by_source for record in records if not record.warm)
    assert len(set(speculator.scopes[-8:])) == 1  # the last repeat: one pass to learn, one that is measured
    twice = [QUESTIONS[1], QUESTIONS[2], QUESTIONS[1]]
    pools = {True: SpeculatorPool(extra={"remembering": lambda options: Remembering()})}
    records = run(pools=pools, methods=["remembering"], settings=[WARM], questions=twice, warm_passes=0)
    assert [bool(record.by_source) for record in records] == [False, False, True]


@pytest.mark.parametrize(
    ("changes", "stop_after", "kept"),
    [
        ({"repeats": 2}, 7, 7),
        ({}, 1, 0),  # between the turns of a question: the question is run again
        ({"settings": [WARM]}, N + 5, 0),  # in a warm pass: the passes are run again
    ],
    ids=["between questions", "within a question", "within a warm pass"],
)
def test_an_interrupted_run_is_resumed(
    bench: MakeBench, tmp_path: Path, changes: dict[str, Any], stop_after: int, kept: int
) -> None:
    path = tmp_path / "records.jsonl"
    with open_records(path, {}) as file:
        whole = bench(**changes).work(file)
        with pytest.raises(KeyboardInterrupt):
            bench(**changes).run(file, stopping_after(stop_after))
        first = file.records[:kept]
    calls: list[int] = []
    with open_records(path, {}) as file:
        again = bench(**changes)
        left = again.work(file)
        again.run(file, lambda: calls.append(1))
        assert len(calls) == left == whole - kept
        assert file.records[:kept] == first
        assert len(file.records) == N * changes.get("repeats", 1)
        assert again.work(file) == 0
        if "settings" in changes:
            assert all(record.by_source for record in file.records if record.method == "remembering")


@pytest.mark.parametrize("folder", ["out", None])
def test_a_stopped_run_says_whether_records_are_kept(
    bench: MakeBench,
    folder: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stopped, out = bench(), None if folder is None else tmp_path / folder
    monkeypatch.setattr(stopped, "run", lambda file, done: stopping_after(1)())
    with pytest.raises(KeyboardInterrupt):
        recorded(stopped, out, {}, False)
    kept = "no records are kept without --out" if out is None else f"0 records are kept in {out / 'records.jsonl'};"
    assert f"stopped; {kept}" in capsys.readouterr().err


def stopping_after(n: int) -> Callable[[], None]:
    """Ctrl-C after ``n`` turns."""
    turns = itertools.count(1)

    def done() -> None:
        if next(turns) == n:
            raise KeyboardInterrupt

    return done


def test_an_impossible_plan_is_refused(bench: MakeBench) -> None:
    with pytest.raises(UnknownMethodError, match="magic"):
        bench(methods=("autoregressive", "magic")).check()
    with pytest.raises(ConfigError, match=r"question 1 \(long\) has \d+ tokens"):
        bench(questions=[QUESTIONS[0], Question(["word " * 5000], "long")]).check()
    bench().check()
