"""Speculators that let requests rest: they are not asked meanwhile, and learn of every token after the send."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.loop import Engine
from engine.protocol import Needs
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from tests.engine.scheduling.step_driver import watched
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.resting import RESTING, Resting
from tests.support.tiny_models import random_prompts

N_TOKENS = 40


def resting_engine(speculator: Resting) -> Engine:
    return make_engine(make_target("llama"), extra={"resting": lambda _: speculator})


@given(
    rests=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    n_blocks=st.sampled_from([30, 200]),
    n=st.integers(1, 4),
    temperature=st.sampled_from([0.0, 0.8]),
)
def test_every_token_is_observed_once_and_outputs_do_not_change(
    rests: list[int], n_blocks: int, n: int, temperature: float
) -> None:
    texts = random_prompts(n)
    speculator = Resting(rests)
    params = SamplingParams(max_tokens=N_TOKENS, temperature=temperature, seed=3)
    engine = make_engine(
        make_target("llama", n_blocks=n_blocks, block_size=4),
        options=SchedulerOptions(prefill_chunk=7),
        extra={"resting": lambda _: speculator},
    )
    done = complete_all(engine, [Request(text, params, "resting") for text in texts], n)
    plain = complete_all(make_engine(make_target("llama")), [Request(text, params) for text in texts], n)
    assert [one.token_ids for one in done] == [one.token_ids for one in plain]
    for number, completion in enumerate(done):
        learnt, stats = speculator.learnt[number], completion.stats
        assert completion.token_ids[: len(learnt)] == learnt
        assert len(completion.token_ids) - len(learnt) <= 3  # of the last step
        asked = speculator.asked[number]
        assert len(asked) == len(set(asked)) or stats.preemptions
        # Every step has the decision of the last draft, but nothing is asked for the last token alone.
        assert 0 <= stats.target_forwards - sum(stats.decisions.values()) <= 1
        whole = [rests[i % len(rests)] for i in range(len(asked))]
        n_resting, n_drafting = stats.decisions.get("off:rests", 0), stats.decisions.get("full:pays", 0)
        assert sum(n + 1 for n in whole[:-1] if n) <= n_resting <= sum(n + 1 for n in whole if n)
        assert 0 <= whole.count(0) - n_drafting <= stats.preemptions  # a preemption can drop a draft before its step


@pytest.mark.parametrize("n_steps", [1, 7])
def test_a_speculator_is_asked_again_when_its_rest_is_over(n_steps: int) -> None:
    speculator = Resting([n_steps])
    engine = resting_engine(speculator)
    (done,) = complete_all(engine, [Request(random_prompts(1)[0], SamplingParams(max_tokens=25), "resting")], 1)
    lengths = speculator.asked[0]
    assert {later - before for before, later in pairwise(lengths)} == {n_steps + 1}
    assert done.stats.target_forwards == 24
    assert engine.scheduler.decisions[RESTING] == done.stats.decisions["off:rests"] == 24


def test_a_speculator_learns_how_long_the_host_took_between_answer_and_send() -> None:
    speculator = Resting([0, 3])
    complete_all(
        resting_engine(speculator), [Request(random_prompts(1)[0], SamplingParams(max_tokens=25), "resting")], 1
    )
    assert all(0.0 < seconds < 10.0 for seconds in speculator.seconds)
    assert len(speculator.seconds) > len(speculator.asked[0])  # steps of rests, too


@pytest.mark.parametrize(("n_steps", "drafts_next", "first"), [(0, True, True), (3, True, False), (3, False, True)])
def test_a_drafter_drafts_after_the_last_step_of_a_rest_if_that_is_requested(
    n_steps: int, drafts_next: bool, first: bool
) -> None:
    speculator = Resting([n_steps, 0], drafts_next)
    speculator.needs = Needs(drafter=True, drafts_first=first)
    engine = resting_engine(speculator)
    with watched(engine) as steps:
        complete_all(engine, [Request(random_prompts(1)[0], SamplingParams(max_tokens=25), "resting")], 1)
    asked = [work.draft_nodes > 0 for step in steps for work in step.work]
    assert asked[0] == first
    period = [False] * n_steps + [drafts_next, drafts_next]  # this loop ends a rest before it forms the next step
    assert asked[1:] == (period * len(asked))[: len(asked) - 1]
    assert len(asked) > 8
