"""Several steps in flight, drafts that take their time, steps that fail, cancels and lost pipelines at any moment: same
texts, no leaks.

The driver does what the router does, in an order that chance decides.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.scheduling.sequence import State
from tests.support.engines import check_idle, complete_all, make_engine, make_target
from tests.support.step_driver import Driver
from tests.support.tiny_models import random_prompts

FAMILY = "qwen3"
METHODS = ("autoregressive", "always-wrong", "always-right", "pld+spectra-core")
N_TOKENS = 12
STYLES: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 0.8, "seed": 6, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"temperature": 1.1, "seed": 7, "min_tokens": 9, "stop_ids": tuple(range(0, 97, 3))},
)


@cache
def jobs() -> tuple[list[Request], list[list[int]]]:
    """Six jobs of all methods and styles, and the texts they must write."""
    params = [SamplingParams(max_tokens=N_TOKENS, **STYLES[i % 4]) for i in range(6)]
    plain = [Request(text, one) for text, one in zip(random_prompts(6), params, strict=True)]
    wanted = [done.token_ids for done in complete_all(make_engine(make_target(FAMILY)), plain)]
    return [Request(job.prompt, job.params, METHODS[(i + i // 4) % 4]) for i, job in enumerate(plain)], wanted


def driver(n_blocks: int, stages: int, chunk: int) -> Driver:
    made, wanted = jobs()
    answers = {tuple(job.prompt): text for job, text in zip(made, wanted, strict=True)}
    options = SchedulerOptions(prefill_chunk=chunk, n_micro_batches=stages, max_sequences=5)
    return Driver(make_engine(make_target(FAMILY, n_blocks=n_blocks, block_size=4), answers, options), stages + 1)


@given(
    seed=st.integers(0, 10**6),
    stages=st.sampled_from([1, 2, 4]),
    n_blocks=st.sampled_from([32, 60, 200]),
    chunk=st.sampled_from([2, 7, 16, 64]),
    cancels=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=4),
    losses=st.lists(st.integers(0, 60), max_size=2),
    failures=st.sets(st.integers(0, 60), max_size=2),
)
def test_whatever_happens_the_texts_are_right_and_nothing_is_left(
    seed: int,
    stages: int,
    n_blocks: int,
    chunk: int,
    cancels: list[tuple[int, int]],
    losses: list[int],
    failures: set[int],
) -> None:
    rng = random.Random(seed)
    made = driver(n_blocks, stages, chunk)
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
            made.lose_target(make_target(FAMILY, n_blocks=n_blocks, block_size=4))
        if moment in failures:
            made.send(is_broken=True)
        if made.engine.scheduler.has_work:
            made.tick(rng)
        made.engine.scheduler.blocks.check_integrity()
    for job in todo[submitted:]:
        made.submit(job)
    made.finish(rng)
    made.check(wanted)
    check_idle(made.engine)


@pytest.mark.parametrize("stages", [2, 4])
def test_a_pipeline_is_kept_full(stages: int) -> None:
    made = driver(200, stages, 64)
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
    check_idle(made.engine)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_prompt_alone_fills_the_pipeline_with_its_chunks(stages: int) -> None:
    made = driver(200, stages, 2)
    for index in range(4):
        made.submit(jobs()[0][index])
        made.most_chunks = 0
        while made.send():
            pass
        assert made.most_chunks == stages
        made.finish(random.Random(index))
    made.check(jobs()[1])
    check_idle(made.engine)


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("n_before", range(6))
def test_a_chunk_that_fails_takes_its_prompt_with_it_and_no_other(n_before: int, stages: int) -> None:
    """The later chunks of the same prompt run on what is there; the last of them shares its step with a newcomer."""
    made = driver(200, stages, 7)
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
    check_idle(made.engine)


@pytest.mark.parametrize("seed", range(4))
def test_two_prompts_read_at_once_never_lock_each_other_out(seed: int) -> None:
    made = driver(30, 2, 4)  # 120 tokens: each prompt alone fits, two do not
    for job in jobs()[0]:
        made.submit(job)
    made.finish(random.Random(seed))
    made.check(jobs()[1])
    check_idle(made.engine)


@pytest.mark.parametrize(
    ("state", "in_flight"),
    [*((state, 0) for state in list(State)[:4]), *((State.PREFILLING, n) for n in (1, 2, 4)), (State.READY, 1)],
)
def test_a_cancel_frees_everything_in_every_state(state: State, in_flight: int) -> None:
    made = driver(200, max(1, in_flight), 2 if in_flight > 1 else 16)
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
    check_idle(made.engine)
    made.cancel(0)  # harmless
