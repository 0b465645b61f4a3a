"""Texts that begin like others: their beginning is copied, and nobody can tell by what they write."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.loop import Engine
from engine.protocol import Needs
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.scheduling.sequence import Sequence, State
from engine.step import Step
from engine.tree import IntArray
from tests.support.engines import check_idle, make_engine, make_target
from tests.support.step_driver import Driver
from tests.support.tiny_models import random_prompts

FAMILY = "qwen3"
BLOCK = 4
N_TOKENS = 12
METHODS = ("autoregressive", "always-right", "pld+spectra-core", "always-wrong", "token-recycling", "pld-plus-h")
STYLES: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8, "seed": 6, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"temperature": 1.1, "seed": 7, "min_tokens": 9, "stop_ids": tuple(range(0, 97, 3))},
)
TEXTS = (random_prompts(1, 2)[0], random_prompts(1, 5)[0])
PLAIN = SchedulerOptions(prefix_cache=False)

Known = tuple[list[Request], list[list[int]], dict[int, IntArray]]  # jobs, texts, rows of prompts by job


@pytest.fixture
def texts() -> list[list[int]]:
    """Two long texts that have nothing in common."""
    return [text * 2 for text in TEXTS]


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
@settings(max_examples=60, deadline=None)
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


def complete_one(made: Engine, job: Request) -> tuple[list[int], int, int]:
    """(text, tokens of the prompt that were found, tokens that were read)."""
    n_read = 0
    inner = made.target.step

    def step(asked: Step) -> Any:
        nonlocal n_read
        n_read += sum(len(work.tokens) for work in asked.work if work.tree is None)
        return inner(asked)

    made.target.step = step  # type: ignore[method-assign]
    done = made.complete(job)
    made.target.step = inner  # type: ignore[method-assign]
    return done.token_ids, done.stats.cached_tokens, n_read


@pytest.fixture
def made() -> Engine:
    return make_engine(make_target(FAMILY, block_size=BLOCK))


def job(prompt: list[int], method: str = "autoregressive", scope: str = "", **params: Any) -> Request:
    return Request(prompt, SamplingParams(max_tokens=N_TOKENS, **params), method, 16, scope=scope)


def whole_blocks(n: int) -> int:
    return n - n % BLOCK


@pytest.mark.parametrize("n", [3 * BLOCK, 3 * BLOCK + 1, 50])
def test_the_same_prompt_again_is_read_from_the_block_of_its_last_token_on(
    n: int, made: Engine, texts: list[list[int]]
) -> None:
    first, *figures = complete_one(made, job(texts[0][:n]))
    assert figures == [0, n]
    found = whole_blocks(n - 1)
    assert complete_one(made, job(texts[0][:n])) == (first, found, n - found)


def test_no_request_tells_more_of_another_than_whole_blocks(made: Engine, texts: list[list[int]]) -> None:
    """Guesses at the token behind what is known of a text: within a block the right one looks like all others."""
    secret, n_known = texts[0][: 3 * BLOCK], 2 * BLOCK
    complete_one(made, job(secret))
    for n_right in range(BLOCK):
        known_part, right = secret[: n_known + n_right], secret[n_known + n_right]
        guesses = [[*known_part, token, *[token + n_right] * BLOCK] for token in {*range(3, 30, 4), right}]
        told = {complete_one(made, job(guess))[1:] for guess in guesses}
        assert len(told) == (1 if n_right < BLOCK - 1 else 2)


def test_a_conversation_goes_on_behind_its_answer(made: Engine, texts: list[list[int]]) -> None:
    answer, *_ = complete_one(made, job(texts[0]))
    longer = [*texts[0], *answer, 5, 6, 7]
    _, n_found, n_read = complete_one(made, job(longer))
    assert n_found == whole_blocks(len(longer) - 4)  # the last token of the answer was drawn, never read
    assert n_read == len(longer) - n_found


@pytest.mark.parametrize("n_shared", [0, BLOCK - 1, BLOCK, BLOCK + 1, 30])
def test_a_match_ends_with_a_block(n_shared: int, made: Engine, texts: list[list[int]]) -> None:
    complete_one(made, job(texts[0]))
    other = [*texts[0][:n_shared], (texts[0][n_shared] + 1) % 97, *texts[1][:20]]
    _, n_found, n_read = complete_one(made, job(other))
    assert n_found == whole_blocks(n_shared)
    assert n_read == len(other) - n_found


def test_another_scope_finds_nothing(made: Engine, texts: list[list[int]]) -> None:
    complete_one(made, job(texts[0], scope="a"))
    assert complete_one(made, job(texts[0], scope="b"))[1] == 0
    assert complete_one(made, job(texts[0]))[1] == 0
    assert complete_one(made, job(texts[0], scope="a"))[1] == whole_blocks(len(texts[0]) - 1)


def test_without_the_option_nothing_is_found(texts: list[list[int]]) -> None:
    made = make_engine(make_target(FAMILY), None, PLAIN)
    assert [complete_one(made, job(texts[0]))[1] for _ in range(2)] == [0, 0]


def test_a_method_that_reads_the_prompt_back_finds_what_others_have_read_back(
    made: Engine, texts: list[list[int]]
) -> None:
    found = whole_blocks(len(texts[0]) - 1)
    assert complete_one(made, job(texts[0]))[1] == 0
    assert complete_one(made, job(texts[0], "token-recycling"))[1] == 0  # nobody has read it back
    assert complete_one(made, job(texts[0], "token-recycling"))[1] == found
    assert complete_one(made, job(texts[0], "pld"))[1] == found
    assert complete_one(made, job(texts[0], "pld-plus-h"))[1] == 0  # its states are not kept
    assert complete_one(made, job(texts[0], "pld-plus-a"))[1] == 0


@pytest.mark.parametrize("style", STYLES[1:])
def test_penalties_and_a_minimum_length_know_the_tokens_that_were_found(
    style: dict[str, Any], made: Engine, texts: list[list[int]]
) -> None:
    first, *_ = complete_one(made, job(texts[0], **style))
    again, n_found, _ = complete_one(made, job(texts[0], **style))
    assert n_found > 0
    assert again == first


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


def told_of(made: Driver, index: int) -> tuple[IntArray, list[int]]:
    """What a request's speculator was told of the text behind which it began, and tokens of each of its steps."""
    made.finish(random.Random(0))
    return made.rows_of(index), list(made.requests[index].stats.freeze().step_tokens)


@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("style", STYLES[:2])
@pytest.mark.parametrize("method", ["token-recycling", "suffix+token-recycling"])
def test_what_was_written_teaches_as_if_it_were_read(method: str, style: dict[str, Any], resumes: bool) -> None:
    """A later turn, or an answer that another router began, finds what the target said and drafts as after a read."""
    text, params = TEXTS[0] * 2, SamplingParams(max_tokens=24, **style)
    cached, cold = (
        Driver(make_engine(make_target(FAMILY, block_size=BLOCK), None, options), 2)
        for options in (SchedulerOptions(), PLAIN)
    )
    cached.submit(Request(text, params, method, 16))
    cached.finish(random.Random(0))
    answer = cached.requests[0].tokens[len(text) :]
    later = Request([*text, *answer, 5, 6, 7], params, method, 16)
    if resumes:
        later = Request(text, SamplingParams(max_tokens=48, **style), method, 16, emitted=answer)
    for made in (cached, cold):
        made.submit(later)
    rows, steps = told_of(cached, 1)
    wanted, its_steps = told_of(cold, 0)
    # The last step's bonus token was drawn, never read; what its tree accepted was never moved into place.
    assert cached.requests[1].stats.n_cached >= whole_blocks(len(text) + (0 if resumes else 24 - 1 - 17))
    assert resumes or cached.requests[1].stats.n_cached > len(text)
    assert np.array_equal(rows, wanted)
    assert steps == its_steps
    check_idle(cached.engine)


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


def test_needs_say_what_is_found(made: Engine, texts: list[list[int]]) -> None:
    """Fewer ids are cut out of more; more than were kept are not there."""
    complete_one(made, job(texts[0], "token-recycling"))
    k = made.pool.needs("token-recycling").prompt_top_k
    assert k > 1
    for wanted, is_found in ((k - 1, True), (k, True), (k + 1, False)):
        seq = made.submit(job(texts[0]))
        request = made.scheduler.find(seq)
        request.needs = Needs(prompt_top_k=wanted)
        while made.has_work:
            made.step()
        assert (request.stats.n_cached > 0) == is_found
