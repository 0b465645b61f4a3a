"""Speculators that rest for some steps: they are not asked meanwhile, and observe every token afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import Branch, Decision, Draft, Needs, Outcome, Pause, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from tests.engine.scheduling.step_driver import watched
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts

ASKED, RESTING = Decision("off", "asked", reads_back=False), Decision("off", "rests", reads_back=False)
N_TOKENS = 40


class Resting:
    """Rests for the given numbers of steps, drafts a guess where one is 0, and keeps what it observes."""

    name = "resting"
    needs = Needs(node_top_k=2, prompt_top_k=2)

    def __init__(self, rests: Sequence[int], drafts_next: bool = True) -> None:
        self.rests, self.drafts_next = rests, drafts_next
        self.asked: dict[int, list[int]] = {}  # lengths of the text
        self.heard: dict[int, list[int]] = {}  # tokens

    def begin(self, view: RequestView) -> None:
        self.asked[view.request_id] = []
        self.heard[view.request_id] = []

    def propose(self, view: RequestView, budget: int) -> list[Branch]:
        asked = self.asked[view.request_id]
        n_steps = self.rests[len(asked) % len(self.rests)]
        asked.append(len(view.context))
        if n_steps == 0:
            return Draft([Branch([5, 6], self.name)], Decision("full", "pays"), drafts_next=self.drafts_next)
        return Draft((), ASKED, Pause(n_steps, RESTING), self.drafts_next)

    def propose_batch(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        return [self.propose(view, budget) for view, budget in zip(views, budgets, strict=True)]

    def observe(self, view: RequestView, outcome: Outcome) -> None:
        heard = self.heard[view.request_id]
        heard += outcome.tokens
        assert view.context.view[view.n_prompt :].tolist() == heard
        if len(outcome.tokens) > 3:  # the guess and the bonus token make three
            assert not len(outcome.tree)
            assert not len(outcome.top_ids)

    def end(self, view: RequestView) -> None:
        """Observed tokens stay, for the tests."""


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
        heard = speculator.heard[number]
        assert completion.token_ids[: len(heard)] == heard
        # Only the last outcome, and the rest that it interrupts, may come too late.
        assert len(completion.token_ids) - len(heard) <= max(rests) + 3
        n_asked, total = len(speculator.asked[number]), sum(completion.stats.decisions.values())
        resting = completion.stats.decisions.get("off:rests", 0)
        assert total - resting == n_asked
        whole = [rests[i % len(rests)] for i in range(n_asked)]
        assert sum(whole[:-1]) <= resting <= sum(whole)


@pytest.mark.parametrize("n_steps", [1, 7])
def test_a_speculator_is_asked_again_when_its_rest_is_over(n_steps: int) -> None:
    speculator = Resting([n_steps])
    engine = make_engine(make_target("llama"), extra={"resting": lambda _: speculator})
    (done,) = complete_all(engine, [Request(random_prompts(1)[0], SamplingParams(max_tokens=25), "resting")], 1)
    lengths = speculator.asked[0]
    assert {later - before for before, later in pairwise(lengths)} == {n_steps + 1}
    assert done.stats.target_forwards == 24
    assert engine.scheduler.decisions[RESTING] == done.stats.decisions["off:rests"] == 24 - len(lengths)


@pytest.mark.parametrize(("n_steps", "drafts_next", "first"), [(0, True, True), (3, True, False), (3, False, True)])
def test_a_drafter_drafts_after_the_last_step_of_a_rest_if_that_is_requested(
    n_steps: int, drafts_next: bool, first: bool
) -> None:
    speculator = Resting([n_steps], drafts_next)
    speculator.needs = Needs(drafter=True, drafts_first=first)
    engine = make_engine(make_target("llama"), extra={"resting": lambda _: speculator})
    with watched(engine) as steps:
        complete_all(engine, [Request(random_prompts(1)[0], SamplingParams(max_tokens=25), "resting")], 1)
    asked = [work.draft_nodes > 0 for step in steps for work in step.work]
    assert asked[0] == first
    period = [False] * n_steps + [drafts_next]
    assert asked[1:] == (period * len(asked))[: len(asked) - 1]
    assert len(asked) > 8
