"""Prefixes while texts are read and written: what is in flight, fails, moves or is preempted harms no copy."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.scheduling.sequence import Sequence, State
from engine.step import Step
from engine.tree import IntArray
from tests.engine.scheduling.test_prefix_matcher import BLOCK, FAMILY, N_TOKENS, PLAIN, STYLES, TEXTS, whole_blocks
from tests.support.engines import check_idle, make_engine, make_target
from tests.support.step_driver import Driver

METHODS = ("autoregressive", "always-right", "pld+spectra-core", "always-wrong", "token-recycling", "pld-plus-h")

Known = tuple[list[Request], list[list[int]], dict[int, IntArray]]  # jobs, texts, rows of prompts by job


@cache
def known() -> Known:
    """Twelve jobs of all methods and styles that begin alike, and what each of them writes and reads alone."""
    chance = random.Random(3)
    jobs, wanted, rows = [], [], {}
    for i in range(12):
        shared = (TEXTS[i % 2] * 2)[: chance.randrange(6, 50)]
        own = [chance.randrange(3, 97) for _ in range(chance.randrange(0, 12))]
        params = SamplingParams(max_tokens=N_TOKENS, **STYLES[i % 3])
        job = Request(shared + own, params, METHODS[(i + i // 6) % 6], 16, scope="ab"[i % 5 == 4])
        alone = Driver(make_engine(make_target(FAMILY), None, PLAIN), 2)
        alone.submit(Request(job.prompt, params, "token-recycling"))
        alone.finish(chance)
        jobs.append(job)
        wanted.append(alone.requests[0].tokens[len(job.prompt) :])
        rows[i] = alone.rows_of(0)
    return jobs, wanted, rows


def driver(n_blocks: int, stages: int, chunk: int = 7) -> Driver:
    jobs, wanted, _ = known()
    answers = {tuple(job.prompt): text for job, text in zip(jobs, wanted, strict=True)}
    options = SchedulerOptions(prefill_chunk=chunk, n_micro_batches=stages, max_sequences=5)
    made = make_engine(make_target(FAMILY, stages=2, n_blocks=n_blocks, block_size=BLOCK), answers, options)
    return Driver(made, stages + 1)


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
@settings(max_examples=10)
def test_whatever_happens_the_texts_are_right_and_nothing_is_left(
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
    jobs, wanted, rows = known()
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
    made.check([wanted[i] for i in order])
    for index, i in enumerate(order):
        told = made.rows_of(index)
        assert np.array_equal(told, rows[i][: len(told), : told.shape[1]])
        assert len(told) in (0, len(rows[i])) or index in made.cancelled
    check_idle(made.engine)


def running(made: Driver, state: State = State.READY) -> Sequence:
    """The latest request, once it has come to a state."""
    request = made.requests[-1]
    while request.state is not state:
        assert made.draft() or made.receive() or made.send()
    return request


def start_of(made: Driver, seq: int) -> int:
    """Tokens that were found for a request that begins with the next step."""
    sent: list[Step] = []
    inner = made.engine.target.step

    def step(asked: Step) -> Any:
        sent.append(asked)
        return inner(asked)

    made.engine.target.step = step  # type: ignore[method-assign]
    assert made.send()
    made.engine.target.step = inner  # type: ignore[method-assign]
    (start,) = (start for start in sent[0].starts if start.seq == seq)
    return start.n_copied


def test_a_text_that_is_being_written_is_shared_up_to_its_last_root() -> None:
    """Accepted nodes behind the root are moved with the next step, which is the one that copies."""
    made = driver(200, 1, 64)
    jobs, wanted, _ = known()
    made.submit(Request(jobs[1].prompt, jobs[1].params, "always-right", 4, scope="a"))
    request = running(made)
    assert made.send()
    assert made.receive()
    request = running(made)
    assert request.keep
    made.submit(Request([*request.tokens, 5, 6], jobs[1].params, scope="a"))
    n_stable = request.n_cached - len(request.keep)
    assert start_of(made, made.requests[1].seq) == whole_blocks(n_stable)
    made.finish(random.Random(0))
    made.check([wanted[1], made.requests[1].tokens[made.requests[1].n_prompt :]])
    check_idle(made.engine)


def test_what_is_in_flight_is_not_offered() -> None:
    made = driver(200, 4, 8)
    jobs = known()[0]
    made.submit(jobs[0])
    assert made.send()
    assert made.send()
    made.receive()
    assert (made.requests[0].n_cached, made.requests[0].n_sent) == (8, 16)
    made.engine.scheduler.cancel(made.requests[0])
    made.submit(jobs[0])
    assert start_of(made, made.requests[1].seq) == 8


def test_a_step_that_failed_leaves_nothing_to_share() -> None:
    made = driver(200, 4, 64)
    jobs = known()[0]
    made.submit(jobs[0])
    assert made.send(is_broken=True)
    made.receive()
    assert made.requests[0].state is State.FINISHED
    made.submit(jobs[0])
    assert start_of(made, made.requests[1].seq) == 0


def test_a_lost_target_leaves_nothing_to_share() -> None:
    made = driver(200, 1, 64)
    jobs = known()[0]
    made.submit(jobs[0])
    made.finish(random.Random(0))
    made.submit(jobs[0])
    running(made)
    made.lose_target(make_target(FAMILY, stages=2, n_blocks=200, block_size=BLOCK))
    assert start_of(made, made.requests[1].seq) == 0
    made.finish(random.Random(0))
    made.check([known()[1][0]] * 2)


def test_one_that_moves_to_another_scheduler_is_read_there() -> None:
    made = driver(200, 1, 64)
    jobs, wanted, _ = known()
    for _ in range(2):
        made.submit(jobs[0])
        request = running(made)
    made.engine.scheduler.withdraw(request)
    made.engine.scheduler.adopt(request)  # a scheduler like any other
    assert start_of(made, request.seq) == whole_blocks(len(jobs[0].prompt) - 1)
    made.finish(random.Random(0))
    made.check([wanted[0]] * 2)


def test_a_preempted_sequence_finds_its_own_text_while_its_blocks_are_free() -> None:
    made = driver(200, 1, 64)
    jobs, wanted, _ = known()
    made.submit(jobs[2])
    request = running(made)
    n_cached = request.n_cached
    made.engine.scheduler._running.evict(request)
    assert start_of(made, request.seq) == n_cached - 1
    made.finish(random.Random(0))
    made.check([wanted[2]])
    assert request.stats.n_cached == 0  # its prompt had to be read once


def test_what_a_resting_speculator_did_not_have_read_back_ends_what_is_kept() -> None:
    made = driver(200, 1, 64)
    made.submit(Request(TEXTS[0], SamplingParams(max_tokens=N_TOKENS), "token-recycling", 4))
    request = running(made)
    assert request.prompt_top_ids.n == request.n_cached == len(TEXTS[0])
    assert made.send()
    assert made.receive()
    n = request.n_cached
    assert request.prompt_top_ids.n == n > len(TEXTS[0])
    running(made).reads_back = False
    assert made.send()
    assert made.receive()
    assert request.prompt_top_ids.n == n < request.n_cached
    assert made.draft()
    request.reads_back = True
    assert made.send()
    assert made.receive()
    assert request.prompt_top_ids.n == n  # no row is kept behind a gap
    made.finish(random.Random(0))
    check_idle(made.engine)
