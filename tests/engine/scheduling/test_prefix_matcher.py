"""A prefix of another text is copied from the cache, and outputs do not change by it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from engine.loop import Engine
from engine.protocol import Needs
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.tree import IntArray
from tests.engine.scheduling.step_driver import StepDriver, watched
from tests.support.engines import check_idle, make_engine, make_target
from tests.support.tiny_models import random_prompts

FAMILY = "qwen3"
BLOCK = 4
N_TOKENS = 12
STYLES: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8, "seed": 6, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"temperature": 1.1, "seed": 7, "min_tokens": 9, "stop_ids": tuple(range(0, 97, 3))},
)
TEXTS = (random_prompts(1, 2)[0], random_prompts(1, 5)[0])
PLAIN = SchedulerOptions(prefix_cache=False)


@pytest.fixture
def texts() -> list[list[int]]:
    """Two long texts that have nothing in common."""
    return [text * 2 for text in TEXTS]


def complete_one(made: Engine, job: Request) -> tuple[list[int], int, int]:
    """Output, tokens of the prompt that were found in the cache, and tokens that were read."""
    with watched(made) as steps:
        done = made.complete(job)
    n_read = sum(len(work.tokens) for step in steps for work in step.work if work.tree is None)
    return done.token_ids, done.stats.cached_tokens, n_read


@pytest.fixture
def made() -> Engine:
    return make_engine(make_target(FAMILY, block_size=BLOCK))


def job(prompt: list[int], method: str = "autoregressive", scope: str = "", **params: Any) -> Request:
    return Request(prompt, SamplingParams(max_tokens=N_TOKENS, **params), method, 16, scope=scope)


def whole_blocks(n: int) -> int:
    return n - n % BLOCK


@pytest.mark.parametrize("n", [3 * BLOCK, 3 * BLOCK + 1, 50])
def test_a_repeated_prompt_is_read_from_the_block_of_its_last_token_on(
    n: int, made: Engine, texts: list[list[int]]
) -> None:
    first, *figures = complete_one(made, job(texts[0][:n]))
    assert figures == [0, n]
    found = whole_blocks(n - 1)
    assert complete_one(made, job(texts[0][:n])) == (first, found, n - found)


def test_a_guess_reveals_no_more_of_another_prompt_than_whole_blocks(made: Engine, texts: list[list[int]]) -> None:
    """Guesses at the next token of a partly known text: within a block the right one looks like all others."""
    secret, n_known = texts[0][: 3 * BLOCK], 2 * BLOCK
    complete_one(made, job(secret))
    for n_right in range(BLOCK):
        known_part, right = secret[: n_known + n_right], secret[n_known + n_right]
        guesses = [[*known_part, token, *[token + n_right] * BLOCK] for token in {*range(3, 30, 4), right}]
        seen = {complete_one(made, job(guess))[1:] for guess in guesses}
        assert len(seen) == (1 if n_right < BLOCK - 1 else 2)


@pytest.mark.parametrize("n_shared", [BLOCK - 1, BLOCK, BLOCK + 1, 30])
def test_a_match_ends_at_a_block_boundary(n_shared: int, made: Engine, texts: list[list[int]]) -> None:
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
    without_cache = make_engine(make_target(FAMILY), None, PLAIN)
    assert [complete_one(without_cache, job(texts[0]))[1] for _ in range(2)] == [0, 0]


def test_a_method_finds_only_prefixes_that_hold_what_it_reads_back(made: Engine, texts: list[list[int]]) -> None:
    found = whole_blocks(len(texts[0]) - 1)
    assert complete_one(made, job(texts[0]))[1] == 0
    assert complete_one(made, job(texts[0], "token-recycling"))[1] == 0  # nobody has read it back
    assert complete_one(made, job(texts[0], "token-recycling"))[1] == found
    assert complete_one(made, job(texts[0], "pld"))[1] == found
    assert complete_one(made, job(texts[0], "pld-plus-h"))[1] == 0  # its states are not kept
    assert complete_one(made, job(texts[0], "pld-plus-a"))[1] == 0
    made = make_engine(make_target(FAMILY, block_size=BLOCK))
    complete_one(made, job(texts[0], "token-recycling"))
    k = made.pool.needs("token-recycling").prompt_top_k
    for top_k, is_found in ((k - 1, True), (k, True), (k + 1, False)):
        request = made.scheduler.find(made.submit(job(texts[0])))
        request.needs = Needs(prompt_top_k=top_k)
        while made.has_work:
            made.step()
        assert (request.stats.n_cached > 0) == is_found


@pytest.mark.parametrize(
    ("method", "style", "resumes"),
    [
        ("token-recycling", STYLES[0], False),
        ("token-recycling", STYLES[1], True),
        ("suffix+token-recycling", STYLES[0], True),
        ("suffix+token-recycling", STYLES[1], False),
    ],
)
def test_a_cached_answer_teaches_a_speculator_as_if_it_were_read(
    method: str, style: dict[str, Any], resumes: bool
) -> None:
    """For a later turn, and for a request that another router began."""

    def learned(made: StepDriver, index: int) -> tuple[IntArray, list[int]]:
        """Rows that a request's speculator got of its prompt, and tokens of each of its steps."""
        made.finish(random.Random(0))
        return made.rows_of(index), list(made.requests[index].stats.freeze().step_tokens)

    text, params = TEXTS[0] * 2, SamplingParams(max_tokens=24, **style)
    cached, cold = (
        StepDriver(make_engine(make_target(FAMILY, block_size=BLOCK), None, options), 2)
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
    rows, steps = learned(cached, 1)
    expected, steps_of_cold = learned(cold, 0)
    # The last step's bonus token was drawn, never read; what its tree accepted was never moved into place.
    assert cached.requests[1].stats.n_cached >= whole_blocks(len(text) + (0 if resumes else 24 - 1 - 17))
    assert resumes or cached.requests[1].stats.n_cached > len(text)
    assert np.array_equal(rows, expected)
    assert steps == steps_of_cold
    check_idle(cached.engine)
