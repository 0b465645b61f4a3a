"""Texts that begin like others: their beginning is copied, and nobody can tell by what they write."""

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
from engine.step import Step
from engine.tree import IntArray
from tests.support.engines import check_idle, make_engine, make_target
from tests.support.step_driver import Driver
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
