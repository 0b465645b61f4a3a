"""Several steps in flight, drafts that take their time, steps that fail, cancels and lost pipelines at any moment: same
texts, no leaks.

The driver below does what the router does, in an order that chance decides.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafting import Turn, apply_drafts, take_turn
from engine.loop import Completion, Engine, Job
from engine.progress import Progress
from engine.sampling.params import SamplingParams
from engine.scheduler import SchedulerOptions
from engine.sequence import Sequence as Request
from engine.sequence import State
from engine.step import Step, StepResult
from engine.target import LocalTarget

FAMILY = "qwen3"
METHODS = ("autoregressive", "always-wrong", "always-right", "pld+spectra-core")
N_TOKENS = 12
STYLES: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 0.8, "seed": 6, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"temperature": 1.1, "seed": 7, "min_tokens": 9, "stop_ids": tuple(range(0, 97, 3))},
)

MakeTarget = Callable[..., LocalTarget]
MakeEngine = Callable[..., Engine]
Complete = Callable[..., list[Completion]]
Prompts = Callable[..., list[list[int]]]
Idle = Callable[[Engine], None]


class Driver:
    """An engine's parts, run as a pipeline runs them: results come in order, but late."""

    def __init__(self, engine: Engine, depth: int) -> None:
        self.engine = engine
        self._depth = depth
        self._told: dict[int, int] = {}  # sequence -> prompt positions that its speculator was told of
        self._in_flight: deque[tuple[Step, StepResult, list[Request]]] = deque()
        self._turns: deque[Turn] = deque()  # drafts asked for
        self._n_steps = 0
        self.requests: list[Request] = []
        self.cancelled: set[int] = set()
        self.most_in_flight = 0
        self.most_chunks = 0  # of one prompt in flight

    def submit(self, job: Job) -> None:
        self.requests.append(self.engine.scheduler.find(self.engine.submit(job)))

    def cancel(self, index: int) -> None:
        if index < len(self.requests) and self.requests[index].state is not State.FINISHED:
            self.cancelled.add(index)
            self.engine.cancel(self.requests[index].seq)

    def lose_target(self, fresh: LocalTarget) -> None:
        self._in_flight.clear()
        self.engine.scheduler.lose_target()
        self.engine.target = fresh

    def send(self, is_broken: bool = False) -> bool:
        step = self.engine.scheduler.next_step(self._n_steps, len(self._in_flight))
        if step is None:
            return False
        self._n_steps += 1
        assert len(self._in_flight) < self._depth
        requests = [self.engine.scheduler.find(work.seq) for work in step.work]
        result = self._break(step) if is_broken else self.engine.target.step(step)
        self._in_flight.append((step, result, requests))
        self.most_in_flight = max(self.most_in_flight, len(self._in_flight))
        self.most_chunks = max([self.most_chunks, *(request.in_flight for request in requests)])
        return True

    def _break(self, step: Step) -> StepResult:
        """What a step that could not be run leaves of itself: something on the first stage, nothing behind it."""
        stages = self.engine.target._stages  # type: ignore[attr-defined]
        if step.work and step.step_id % 2:
            stages[0].forward(step, None)
        for stage in stages:
            stage.admit(step)
        return StepResult(step.step_id, [], 0.0, "broken")

    def receive(self) -> bool:
        if not self._in_flight:
            return False
        step, result, requests = self._in_flight.popleft()
        if result.error:
            self._fail(requests)
            return True
        progress = self.engine.scheduler.commit(step, result, requests)
        self._check_told(progress)
        turn = take_turn(progress, self.engine.scheduler)
        for request in turn.finished:
            self.engine.pool.end(request.seq)
        self._turns.append(turn)
        return True

    def _fail(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.cancelled.add(self.requests.index(request))
            self.engine.scheduler.fail(request)
            self.engine.pool.end(request.seq)

    def _check_told(self, progress: Sequence[Progress]) -> None:
        """Outcomes of chunks tell of every position of a prompt once, in order."""
        for p in progress:
            if p.outcome is not None and p.outcome.prompt_top_ids is not None:
                told = self._told.get(p.sequence.seq, 0)
                assert p.outcome.prompt_start == told
                self._told[p.sequence.seq] = told + len(p.outcome.prompt_top_ids)

    def draft(self) -> bool:
        if not self._turns:
            return False
        turn = self._turns.popleft()
        apply_drafts(turn, self.engine.pool.advance(turn.outcomes, turn.budgets), self.engine.scheduler)
        return True

    def tick(self, rng: random.Random) -> None:
        """One thing that can happen, happens."""
        actions = [self.send, self.receive, self.draft]
        rng.shuffle(actions)
        assert any(action() for action in actions), "stalled"

    def finish(self, rng: random.Random) -> None:
        while self.engine.scheduler.has_work or self._in_flight:
            self.tick(rng)

    def check(self, wanted: Sequence[list[int]]) -> None:
        """Whoever was not cancelled wrote the right text; the others the beginning of it."""
        for index, request in enumerate(self.requests):
            output = request.tokens[request.n_prompt :]
            assert request.state is State.FINISHED
            assert output == wanted[index][: len(output)]
            assert index in self.cancelled or output == wanted[index]


@pytest.fixture(scope="module")
def jobs(target: MakeTarget, engine: MakeEngine, complete: Complete, prompts: Prompts) -> Callable[[], Any]:
    """``jobs()``: six jobs of all methods and styles, and the texts they must write."""

    @lru_cache
    def make() -> tuple[list[Job], list[list[int]]]:
        params = [SamplingParams(max_tokens=N_TOKENS, **STYLES[i % 4]) for i in range(6)]
        plain = [Job(text, one) for text, one in zip(prompts(6), params, strict=True)]
        wanted = [done.token_ids for done in complete(engine(target(FAMILY)), plain)]
        return [Job(job.prompt, job.params, METHODS[(i + i // 4) % 4]) for i, job in enumerate(plain)], wanted

    return make


def driver(target: MakeTarget, engine: MakeEngine, jobs: Any, n_blocks: int, stages: int, chunk: int) -> Driver:
    made, wanted = jobs()
    answers = {tuple(job.prompt): text for job, text in zip(made, wanted, strict=True)}
    options = SchedulerOptions(prefill_chunk=chunk, n_micro_batches=stages, max_sequences=5)
    return Driver(engine(target(FAMILY, n_blocks=n_blocks, block_size=4), answers, options), stages + 1)


@given(
    seed=st.integers(0, 10**6),
    stages=st.sampled_from([1, 2, 4]),
    n_blocks=st.sampled_from([32, 60, 200]),
    chunk=st.sampled_from([2, 7, 16, 64]),
    cancels=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=4),
    losses=st.lists(st.integers(0, 60), max_size=2),
    failures=st.sets(st.integers(0, 60), max_size=2),
)
@settings(max_examples=40, deadline=None)
def test_whatever_happens_the_texts_are_right_and_nothing_is_left(
    target: MakeTarget,
    engine: MakeEngine,
    jobs: Any,
    idle: Idle,
    seed: int,
    stages: int,
    n_blocks: int,
    chunk: int,
    cancels: list[tuple[int, int]],
    losses: list[int],
    failures: set[int],
) -> None:
    rng = random.Random(seed)
    made = driver(target, engine, jobs, n_blocks, stages, chunk)
    todo, wanted = jobs()
    submitted = 0
    for moment in range(61):
        if submitted < len(todo) and (rng.random() < 0.3 or not made.engine.scheduler.has_work):
            made.submit(todo[submitted])
            submitted += 1
        for when, index in cancels:
            if when == moment:
                made.cancel(index)
        if moment in losses:
            made.lose_target(target(FAMILY, n_blocks=n_blocks, block_size=4))
        if moment in failures:
            made.send(is_broken=True)
        if made.engine.scheduler.has_work:
            made.tick(rng)
        made.engine.scheduler.blocks.check_integrity()
    for job in todo[submitted:]:
        made.submit(job)
    made.finish(rng)
    made.check(wanted)
    idle(made.engine)


@pytest.mark.parametrize("stages", [2, 4])
def test_a_pipeline_is_kept_full(stages: int, target: MakeTarget, engine: MakeEngine, jobs: Any, idle: Idle) -> None:
    made = driver(target, engine, jobs, 200, stages, 64)
    for job in jobs()[0]:
        made.submit(job)
    for _ in range(5):
        while made.send():
            pass
        made.receive()
        made.draft()
    assert made.most_in_flight > stages - 1
    made.finish(random.Random(0))
    made.check(jobs()[1])
    idle(made.engine)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_prompt_alone_fills_the_pipeline_with_its_chunks(
    stages: int, target: MakeTarget, engine: MakeEngine, jobs: Any, idle: Idle
) -> None:
    made = driver(target, engine, jobs, 200, stages, 2)
    for index in range(4):
        made.submit(jobs()[0][index])
        made.most_chunks = 0
        while made.send():
            pass
        assert made.most_chunks == stages
        made.finish(random.Random(index))
    made.check(jobs()[1])
    idle(made.engine)


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("n_before", range(6))
def test_a_chunk_that_fails_takes_its_prompt_with_it_and_nobody_else(
    n_before: int, stages: int, target: MakeTarget, engine: MakeEngine, jobs: Any, idle: Idle
) -> None:
    """The later chunks of the same prompt run on what is there; the last of them shares its step with a newcomer."""
    made = driver(target, engine, jobs, 200, stages, 7)
    made.submit(jobs()[0][1])
    made.submit(jobs()[0][2])
    for _ in range(n_before):
        if not made.send():
            made.receive()
            made.draft()
    broken = made.send(is_broken=True)
    while made.send():
        pass
    made.finish(random.Random(0))
    assert broken == bool(made.cancelled)
    assert not {0, 1} <= made.cancelled  # one step of these has both, but it is not the one that fails
    made.check(jobs()[1][1:])
    idle(made.engine)


@pytest.mark.parametrize("seed", range(4))
def test_two_prompts_read_at_once_never_lock_each_other_out(
    seed: int, target: MakeTarget, engine: MakeEngine, jobs: Any, idle: Idle
) -> None:
    made = driver(target, engine, jobs, 30, 2, 4)  # 120 tokens: each prompt alone fits, two do not
    for job in jobs()[0]:
        made.submit(job)
    made.finish(random.Random(seed))
    made.check(jobs()[1])
    idle(made.engine)


@pytest.mark.parametrize(
    ("state", "in_flight"),
    [*((state, 0) for state in list(State)[:4]), *((State.PREFILLING, n) for n in (1, 2, 4)), (State.READY, 1)],
)
def test_a_cancel_frees_everything_in_every_state(
    state: State, in_flight: int, target: MakeTarget, engine: MakeEngine, jobs: Any, idle: Idle
) -> None:
    made = driver(target, engine, jobs, 200, max(1, in_flight), 2 if in_flight > 1 else 16)
    made.submit(jobs()[0][3])
    request = made.requests[0]
    actions = [made.send] * in_flight + [made.receive, made.draft, made.send] * 20
    while (request.state, request.in_flight) != (state, in_flight):
        actions.pop(0)()
    made.cancel(0)
    assert made.engine.pool.n_live == 0
    for _ in range(in_flight):
        assert made.engine.scheduler.blocks.n_free < 200  # what is in flight still writes there
        made.receive()
    assert made.engine.scheduler.blocks.n_free == 200
    made.finish(random.Random(0))
    assert request.state is State.FINISHED
    idle(made.engine)
    made.cancel(0)  # harmless
