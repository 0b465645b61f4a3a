"""``auto`` in tiers: what is asked, read back and told in each, and what moves a request from one to another."""

import numpy as np
import pytest

from engine.composer import compose
from engine.protocol import Draft, Needs, Outcome, StepTime
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.step_cost import StepCosts
from engine.tree import EMPTY_TREE
from speculators.auto.decisions import BATCH, FULL, NOTHING, OFF, RESTS, TEXT, UNLIKELY
from speculators.auto.speculator import Auto
from speculators.registry import SpeculatorOptions, create
from speculators.testing import HashTarget
from tests.support.auto_sources import (
    FREE,
    TARGET,
    VOCAB,
    Decoding,
    Fixed,
    Quick,
    Source,
    Told,
    decided,
    line,
    make_request,
)


def test_a_source_that_is_right_drafts_with_all_at_cheap_nodes_and_is_heard():
    source = Told(claim=0.9)
    made = decided(Decoding(Auto([source], line(0.02))), 50)
    assert {decision.tier for decision in made} == {FULL}
    assert source.heard == 50


def test_a_source_that_is_wrong_ends_off_and_costs_nothing_there():
    source = Told(claim=0.9, accuracy=0.0)
    made = decided(Decoding(Auto([source], line(0.2))), 1000)
    assert made[0].tier == FULL
    late = made[200:]
    assert sum(decision.tier == OFF for decision in late) > 0.95 * len(late)
    assert not any(decision.reads_back for decision in late if decision.tier == OFF)
    assert sum(decision is RESTS for decision in late) > 0.9 * len(late)
    assert source.heard < 100
    assert len(source.asked) < 150


def test_where_a_node_costs_a_hundred_steps_nothing_is_asked():
    for source in (Told(claim=1.0), Fixed([])):
        decoding = Decoding(Auto([source], line(100.0)), 3)
        assert decided(decoding, 20) == [BATCH] * 20
        assert source.asked == []


def test_a_batch_can_be_too_large_for_any_draft():
    """Up to eight sequences a node is nearly free, beyond every row counts twice."""
    free, full = ((8, 72), (1.0, 1.064)), ((16, 64), (2.0, 50.0))
    costs = StepCosts({8: free, 16: full})
    for n, tier in ((8, TEXT), (16, OFF), (64, OFF)):
        source = Source(claim=0.9)
        assert decided(Decoding(Auto([source], costs), n), 3)[0].tier == tier
        assert bool(source.asked) == (tier == TEXT)


def test_the_batch_is_that_of_the_step_also_where_others_draft_for_the_rest():
    free, full = ((1, 65), (1.0, 1.064)), ((16, 64), (2.0, 50.0))
    auto, request = Auto([Source(claim=0.9)], StepCosts({1: free, 16: full})), make_request()
    auto.begin(request)
    assert auto.propose(request, 8)
    request.context.extend([1])
    auto.observe(request, Outcome([1], EMPTY_TREE, step=StepTime(2.0, 16, 16, 100.0)))
    assert auto.propose(request, 8).decision == BATCH


def test_reasons_tell_apart_what_had_nothing_and_what_was_too_unlikely():
    assert NOTHING in decided(Decoding(Auto([Fixed([])], FREE)), 20)
    assert UNLIKELY in decided(Decoding(Auto([Source(claim=0.1, accuracy=0.0)], line(0.5))), 20)


def reading(seconds):
    """Nodes are nearly free; reading ids back takes ``seconds`` a step and a tenth of that a row."""
    curves = {n: ((n, 64 * n), (1.0 + seconds * (1 + 0.1 * n), 1.0 + seconds * (1 + 6.4 * n))) for n in (1, 16)}
    return StepCosts(curves, {}, {1: 1.0, 16: 1.0})


@pytest.mark.parametrize(("seconds", "tier"), [(1e-4, FULL), (0.2, TEXT)])
def test_what_the_target_says_is_read_back_only_where_more_is_gained_by_it(seconds, tier):
    """Where that is dear, all that the source is right about comes from its text."""

    class Both(Told):
        from_text = ("source",) if tier == TEXT else ()

    made = decided(Decoding(Auto([Both(claim=0.9)], reading(seconds))), 300)
    assert made[0].tier == FULL
    counts = [decision.tier == tier for decision in made[100:]]
    assert np.mean(counts) > 0.75
    if tier == TEXT:
        assert not any(decision.reads_back for decision in made if decision.tier == TEXT)
        assert any(decision.tier == FULL for decision in made[100:])  # tried again, rarely


def test_a_pause_ends_when_looking_back_shows_that_drafts_were_right():
    """Where the text begins to repeat itself, long pauses would be in the way."""
    steps, decoding = [], None
    for target in (HashTarget(4096, 4096), HashTarget(VOCAB, 1)):
        auto = create("auto", SpeculatorOptions(step_costs=line(0.05))) if decoding is None else decoding.speculator
        before = None if decoding is None else decoding.requests[0]
        decoding = Decoding(auto, target=HashTarget(4096, 4096)) if before is None else decoding
        decoding.target = target
        steps.append(decoding.steps(150))
    assert np.mean(np.array(steps[0][50:]) > 0) < 0.15
    assert sum(steps[1][60:]) > 90  # soon most tokens are drafted


class Repeating(Quick):
    """Offers to say how many tokens are repeated, and drafts nothing that is worth a node."""

    n_repeated = 0

    def __init__(self):
        super().__init__(claim=0.5, accuracy=0.0)
        self.behind = []  # length of the context, question by question

    def repeated(self, request, longest):
        return min(self.n_repeated, longest)

    def propose(self, request, budget):
        self.behind.append(len(request.context))
        return super().propose(request, budget)


@pytest.mark.parametrize(("n_repeated", "looks"), [(0, False), (2, False), (3, True), (8, True)])
def test_an_earlier_place_is_asked_about_only_if_the_text_repeats_something(n_repeated, looks):
    source = Repeating()
    source.n_repeated = n_repeated
    decoding = Decoding(Auto([source], line(0.6)))
    lengths = []
    for _ in range(300):
        n_asked = len(source.behind)
        decoding.step()
        lengths += [(behind, len(decoding.requests[0].context) - 1) for behind in source.behind[n_asked:]]
    assert any(behind < now for behind, now in lengths) == looks


@pytest.mark.usefixtures("steady_clocks")
def test_a_request_that_rests_tells_nothing_and_its_sources_catch_up():
    source = Told(claim=0.3, accuracy=0.0)
    auto, request = Auto([source], line(0.5)), make_request()
    auto.begin(request)
    for _ in range(100):
        before = source.heard
        draft = auto.propose(request, 8)
        assert isinstance(draft, Draft)
        outcome = TARGET.score(request.context.view.tolist(), compose(draft, 8))
        request.context.extend(outcome.tokens)
        auto.observe(request, outcome)
        assert source.heard == before + draft.decision.reads_back


def test_new_requests_of_a_scope_where_drafts_do_not_pay_rest_longer_from_the_start():
    auto = Auto([Source(claim=0.3, accuracy=0.0)], line(0.5))
    first = [decided(Decoding(auto, first=number), 40) for number in range(20)]
    asked = [sum(decision is not RESTS for decision in one) for one in first]
    assert asked[-1] < asked[0] / 2


def tries_of_a_dear_source(auto, first, n, n_steps=60):
    """How many of a request's steps ask all sources, of ``n`` requests one after the other."""
    tries = []
    for number in range(first, first + n):
        decoding = Decoding(auto, first=number)
        tries.append(sum(decision.tier == FULL for decision in decided(decoding, n_steps)))
        decoding.end()
    return tries


@pytest.mark.usefixtures("steady_clocks")
def test_what_one_request_learns_of_a_dear_source_holds_for_the_next_until_it_proves_right():
    dear = Told(claim=0.9, accuracy=0.0, name="dear")
    auto = Auto([Quick(claim=0.9, depth=2, name="quick"), dear], line(0.02))
    auto._tiers.clocks[True].seconds = 0.5  # of a step of one second
    first, *others = tries_of_a_dear_source(auto, 0, 40)
    assert first > 3
    assert sum(others) < 40 * 60 / 100
    assert any(others)  # now and then it is tried
    dear.accuracy = 1.0
    tries_of_a_dear_source(auto, 40, 40)
    assert min(tries_of_a_dear_source(auto, 80, 5)) > 30  # all but the first 16 drafts, from text alone


@pytest.mark.usefixtures("steady_clocks")
@pytest.mark.parametrize("accuracy", [0.0, 0.6])  # of what drafts from text: pauses, and none
@pytest.mark.parametrize("seconds", [1e-4, 0.5])  # that all sources take
def test_the_targets_drafter_drafts_ahead_where_the_next_draft_is_one_of_all_sources(accuracy, seconds):
    class Drafter(Told):
        needs = Needs(node_top_k=4, drafter=True)

    auto = Auto([Quick(claim=0.9, accuracy=accuracy, depth=2, name="quick"), Drafter(claim=0.9, accuracy=0.5)], FREE)
    auto._tiers.clocks[True].seconds = seconds
    outcomes = {(True, True): 0, (False, False): 0, (True, False): 0, (False, True): 0}
    for number in range(8):
        request, wanted = make_request(number), auto.needs_of(make_request(number).request).drafts_first
        auto.begin(request)
        for _ in range(60):
            (draft,) = auto.propose_batch((request,), (16,))
            state = auto._requests[request.request_id]
            if draft.decision is not RESTS:
                outcomes[wanted, state.all_draft] += 1
            wanted = draft.wants_next
            for _ in range(1 + draft.rest.n_steps):
                outcome = TARGET.score(request.context.view.tolist(), compose(draft, 16))
                request.context.extend(outcome.tokens)
                draft = Draft()
            auto.observe(request, outcome)
        auto.end(request)
    assert outcomes[True, True] + outcomes[False, False] > 0.97 * sum(outcomes.values())
    assert outcomes[True, True] > 3


# -- prompts ---------------------------------------------------------------------------------------------------------


def prompt_needs(accuracy, n=40):
    """How many of ``n`` requests have their prompts read back, after as many others have ended."""

    class Learner(Told):
        needs = Needs(node_top_k=4, prompt_top_k=4)

    costs = line(0.05)
    auto = Auto([Learner(claim=0.9, accuracy=accuracy)], StepCosts(costs.curves, prompt_row=0.1))
    for number in range(n):
        decoding = Decoding(auto, first=number)
        decoding.steps(20)
        decoding.end()
    wanted = Request(list(range(30)), SamplingParams(max_tokens=20))
    return [auto.needs_of(wanted).prompt_top_k for _ in range(n)], auto


def test_prompts_are_read_back_where_drafts_will_save_more_than_that_takes():
    always, auto = prompt_needs(1.0)
    assert always == [4] * 40
    rarely, auto = prompt_needs(0.0)
    assert 1 <= sum(top_k > 0 for top_k in rarely) <= 2
    assert auto.needs.prompt_top_k == 4  # of the method: what a server must be able to read
    other = Request([1] * 30, SamplingParams(max_tokens=20), scope="another")
    assert auto.needs_of(other).prompt_top_k == 4  # nothing is known there
