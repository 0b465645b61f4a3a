"""Several steps in flight, failures, cancels and lost targets at any moment: the same outputs, and no leaks."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.scheduling.sequence import Sequence, SequenceState
from engine.tree import IntArray
from tests.engine.scheduling.step_driver import StepDriver, watched
from tests.engine.scheduling.test_prefix_matcher import BLOCK, FAMILY, N_TOKENS, PLAIN, STYLES, TEXTS, whole_blocks
from tests.support.engines import check_idle, make_engine, make_target

METHODS = ("autoregressive", "always-right", "pld+spectra-core", "always-wrong", "token-recycling", "pld-plus-h")

Known = tuple[list[Request], list[list[int]], dict[int, IntArray]]  # jobs, texts, rows of prompts by job


@cache
def known() -> Known:
    """Twelve jobs of all methods and styles that share prefixes, and the output and rows of each alone."""
    chance = random.Random(3)
    jobs, expected, rows = [], [], {}
    for i in range(12):
        shared = (TEXTS[i % 2] * 2)[: chance.randrange(6, 50)]
        own = [chance.randrange(3, 97) for _ in range(chance.randrange(0, 12))]
        params = SamplingParams(max_tokens=N_TOKENS, **STYLES[i % 3])
        job = Request(shared + own, params, METHODS[(i + i // 6) % 6], 16, scope="ab"[i % 5 == 4])
        alone = StepDriver(make_engine(make_target(FAMILY), None, PLAIN), 2)
        alone.submit(Request(job.prompt, params, "token-recycling"))
        alone.finish(chance)
        jobs.append(job)
        expected.append(alone.requests[0].tokens[len(job.prompt) :])
        rows[i] = alone.rows_of(0)
    return jobs, expected, rows


def driver(n_blocks: int, stages: int, chunk: int = 7) -> StepDriver:
    jobs, expected, _ = known()
    answers = {tuple(job.prompt): text for job, text in zip(jobs, expected, strict=True)}
    options = SchedulerOptions(prefill_chunk=chunk, n_micro_batches=stages, max_sequences=5)
    made = make_engine(make_target(FAMILY, stages=2, n_blocks=n_blocks, block_size=BLOCK), answers, options)
    return StepDriver(made, stages + 1)


@given(
    seed=st.integers(0, 10**6),
    stages=st.sampled_from([1, 2, 4]),
    n_blocks=st.sampled_from([26, 32, 60, 200]),
    chunk=st.sampled_from([2, 7, 64]),
    order=st.permutations(range(12)),
    cancels=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 11)), max_size=4),
    losses=st.lists(st.integers(0, 90), max_size=1),
    failures=st.sets(st.integers(0, 90), max_size=3),
)
def test_outputs_are_right_and_nothing_leaks_whatever_happens(
    seed: int,
    stages: int,
    n_blocks: int,
    chunk: int,
    order: list[int],
    cancels: list[tuple[int, int]],
    losses: list[int],
    failures: set[int],
) -> None:
    rng = random.Random(seed)
    jobs, expected, rows = known()
    made = driver(n_blocks, stages, chunk)
    todo = [jobs[i] for i in order]
    for moment in range(91):
        if todo and (rng.random() < 0.3 or not made.engine.scheduler.has_work):
            made.submit(todo.pop(0))
        for when, index in cancels:
            if when == moment:
                made.cancel(index)
        if moment in losses:
            made.lose_target(make_target(FAMILY, stages=2, n_blocks=n_blocks, block_size=BLOCK))
        if moment in failures:
            made.send(is_broken=True)
        if made.engine.scheduler.has_work:
            made.tick(rng)
        made.engine.scheduler.blocks.check_integrity()
    for job in todo:
        made.submit(job)
    made.finish(rng)
    made.check([expected[i] for i in order])
    for index, i in enumerate(order):
        found = made.rows_of(index)
        assert np.array_equal(found, rows[i][: len(found), : found.shape[1]])
        assert len(found) in (0, len(rows[i])) or index in made.cancelled
    check_idle(made.engine)


@pytest.mark.parametrize(("stages", "chunk"), [(1, 2), (2, 64), (4, 2), (4, 64)])
def test_chunks_of_a_prompt_and_steps_of_many_requests_fill_the_pipeline(stages: int, chunk: int) -> None:
    made = driver(200, stages, chunk)
    jobs, expected, _ = known()
    made.submit(jobs[0])
    while made.send():
        pass
    assert made.most_chunks == (stages if chunk == 2 else 1)
    for job in jobs[1:]:
        made.submit(job)
    for _ in range(5):
        while made.send():
            pass
        made.receive()
        made.draft()
    assert made.most_in_flight >= min(stages, 3)
    made.finish(random.Random(0))
    made.check(expected)
    check_idle(made.engine)


@pytest.mark.parametrize(("n_before", "stages"), [(0, 2), (1, 4), (2, 2), (3, 4), (4, 2), (5, 4)])
def test_a_failed_chunk_ends_its_request_and_no_other(n_before: int, stages: int) -> None:
    """Later chunks of the same prompt are in flight; the last of them shares its step with another request."""
    made = driver(200, stages, 7)
    jobs, expected, _ = known()
    made.submit(jobs[1])
    made.submit(jobs[2])
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
    made.check(expected[1:])
    check_idle(made.engine)


@pytest.mark.parametrize("seed", range(3))
def test_two_prompts_that_do_not_fit_together_do_not_deadlock(seed: int) -> None:
    made = driver(26, 2, 4)  # 104 tokens: each prompt alone fits, two do not
    jobs, expected, _ = known()
    for job in jobs:
        made.submit(job)
    made.finish(random.Random(seed))
    made.check(expected)
    check_idle(made.engine)


@pytest.mark.parametrize(
    ("state", "in_flight"),
    [
        *((state, 0) for state in list(SequenceState)[:4]),
        (SequenceState.PREFILLING, 1),
        (SequenceState.PREFILLING, 4),
        (SequenceState.READY, 1),
    ],
)
def test_a_cancel_frees_everything_in_every_state(state: SequenceState, in_flight: int) -> None:
    made = driver(200, max(1, in_flight), 2 if in_flight > 1 else 16)
    made.submit(max(known()[0], key=lambda job: len(job.prompt)))
    request = made.requests[0]
    actions = [made.send] * in_flight + [made.receive, made.draft, made.send] * 20
    while (request.state, request.in_flight) != (state, in_flight):
        actions.pop(0)()
    made.cancel(0)
    assert made.engine.pool.n_live == 0
    for _ in range(in_flight):
        assert made.engine.scheduler.blocks.n_free < 200  # steps in flight still write there
        made.receive()
    assert made.engine.scheduler.blocks.n_free == 200
    made.finish(random.Random(0))
    assert request.state is SequenceState.FINISHED
    check_idle(made.engine)
    made.cancel(0)  # harmless


def running(made: StepDriver, state: SequenceState = SequenceState.READY) -> Sequence:
    """The latest request, once it has reached a state."""
    request = made.requests[-1]
    while request.state is not state:
        assert made.draft() or made.receive() or made.send()
    return request


def n_found(made: StepDriver, seq: int) -> int:
    """Cached tokens of a request that starts with the next step."""
    with watched(made.engine) as steps:
        assert made.send()
    (start,) = (start for start in steps[0].starts if start.seq == seq)
    return start.n_copied


def test_a_text_that_is_being_written_is_shared_up_to_its_last_root() -> None:
    """Accepted nodes after the root are moved with the next step, which is the one that copies."""
    made = driver(200, 1, 64)
    jobs, expected, _ = known()
    made.submit(Request(jobs[1].prompt, jobs[1].params, "always-right", 4, scope="a"))
    request = running(made)
    assert made.send()
    assert made.receive()
    request = running(made)
    assert request.keep
    made.submit(Request([*request.tokens, 5, 6], jobs[1].params, scope="a"))
    n_stable = request.n_cached - len(request.keep)
    assert n_found(made, made.requests[1].seq) == whole_blocks(n_stable)
    made.finish(random.Random(0))
    made.check([expected[1], made.requests[1].tokens[made.requests[1].n_prompt :]])
    check_idle(made.engine)


def test_only_answered_steps_that_succeeded_are_shared() -> None:
    made, jobs = driver(200, 4, 8), known()[0]
    made.submit(jobs[0])
    assert made.send()
    assert made.send()
    made.receive()
    assert (made.requests[0].n_cached, made.requests[0].n_sent) == (8, 16)
    made.engine.scheduler.cancel(made.requests[0])
    made.submit(jobs[0])
    assert n_found(made, made.requests[1].seq) == 8
    failed = driver(200, 4, 64)
    failed.submit(jobs[0])
    assert failed.send(is_broken=True)
    failed.receive()
    assert failed.requests[0].state is SequenceState.FINISHED
    failed.submit(jobs[0])
    assert n_found(failed, failed.requests[1].seq) == 0


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_request_finds_its_prompt_on_another_scheduler_but_not_on_a_new_target(is_lost: bool) -> None:
    made = driver(200, 1, 64)
    jobs, expected, _ = known()
    made.submit(jobs[0])
    made.finish(random.Random(0))
    made.submit(jobs[0])
    request = running(made)
    if is_lost:
        made.lose_target(make_target(FAMILY, stages=2, n_blocks=200, block_size=BLOCK))
    else:
        made.engine.scheduler.withdraw(request)
        made.engine.scheduler.adopt(request)  # a scheduler like any other
    assert n_found(made, request.seq) == (0 if is_lost else whole_blocks(len(jobs[0].prompt) - 1))
    made.finish(random.Random(0))
    made.check([expected[0]] * 2)
