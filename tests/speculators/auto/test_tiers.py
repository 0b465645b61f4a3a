"""``auto`` in tiers: which sources are asked and observe in each, and what moves a request between them."""

from __future__ import annotations

import numpy as np
import pytest

from engine.composer import compose
from engine.protocol import Draft, Needs, Outcome
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.step_cost import StepCosts
from engine.tree import EMPTY_TREE
from speculators.auto.config import AutoConfig
from speculators.auto.decisions import BACKS_OFF, BATCH_TOO_LARGE, FULL, OFF, TEXT
from speculators.auto.speculator import Auto
from speculators.method import SpeculatorOptions
from speculators.registry import create
from speculators.testing import HashTarget
from tests.speculators.auto.auto_sources import (
    FREE,
    TARGET,
    VOCAB,
    AutoRun,
    FakeSource,
    ReadBackSource,
    TextSource,
    line,
    make_request,
)


@pytest.mark.parametrize(
    ("sources", "text", "every"),
    [
        ((), ["pld", "prediction"], ["suffix+token-recycling", "prediction"]),
        (("pld", "spectra-core"), ["pld", "prediction"], ["pld", "spectra-core", "prediction"]),
        (("prediction", "token-recycling"), ["token-recycling", "prediction"], ["prediction", "token-recycling"]),
    ],
)
def test_the_text_tier_asks_sources_without_needs_and_the_mixed_model_replaces_them(sources, text, every):
    found = create("auto", SpeculatorOptions().with_settings(AutoConfig(sources=sources)))._sources
    assert [part.name for part in found.asked(False)] == text
    assert [part.name for part in found.asked(True)] == every


def test_a_source_that_is_wrong_ends_off_and_costs_nothing_there():
    source = ReadBackSource(claim=0.9, accuracy=0.0)
    made = AutoRun(Auto([source], line(0.2))).decided(600)
    assert made[0].tier == FULL
    late = made[200:]
    assert sum(decision.tier == OFF for decision in late) > 0.95 * len(late)
    assert not any(decision.reads_back for decision in late if decision.tier == OFF)
    assert sum(decision is BACKS_OFF for decision in late) > 0.9 * len(late)
    assert source.n_observed < 100
    assert len(source.asked) < 150


@pytest.mark.parametrize(
    ("costs", "n", "tier"),
    [
        (line(100.0), 3, OFF),
        *(
            (StepCosts({8: ((8, 72), (1.0, 1.064)), 16: ((16, 64), (2.0, 50.0))}), n, tier)
            for n, tier in ((8, TEXT), (16, OFF), (64, OFF))
        ),
    ],
)
def test_nothing_is_asked_where_nodes_or_batches_are_too_expensive_for_any_draft(costs, n, tier):
    """Up to eight sequences a node is nearly free, beyond every row counts twice."""
    source = FakeSource(claim=0.9)
    made = AutoRun(Auto([source], costs), n).decided(5)
    assert made[0].tier == tier
    assert (made == [BATCH_TOO_LARGE] * 5) == (source.asked == []) == (tier == OFF)


class PromptSource(ReadBackSource):
    """Needs the ids after prompt positions, too."""

    needs = Needs(node_top_k=4, prompt_top_k=4)


@pytest.mark.usefixtures("steady_clocks")
@pytest.mark.parametrize("reads_prompt", [False, True])
@pytest.mark.parametrize(("seconds", "later"), [(4e-4, True), (1.0, False)])
def test_a_source_that_is_not_asked_at_first_begins_when_it_is_or_when_a_prompt_was_read_back(
    seconds, later, reads_prompt
):
    quick, full = TextSource(claim=0.9), PromptSource(claim=0.9)
    auto = Auto([full, quick], StepCosts({1: ((1, 200), (seconds, 1.01 * seconds))}))
    made = AutoRun(auto).decided(3)
    assert made[0].tier == (TEXT if later else FULL), "text first, where all sources take a good part of a step"
    assert (full.asked == []) == later
    second = make_request(5)
    assert auto.needs_of(second.request).prompt_top_k == (0 if later else 4)
    auto.begin(second)
    assert second.request_id in quick.live
    assert (second.request_id not in full.live) == later
    n_observed = full.n_observed
    ids = np.zeros((3, 4), np.int32) if reads_prompt else None  # decided when the request was submitted
    auto.observe(second, Outcome([9], EMPTY_TREE, n_read=3, prompt_top_ids=ids))
    assert (full.n_observed == n_observed) == (later and not reads_prompt)
    assert (second.request_id in full.live) == (reads_prompt or not later)
    decoding = AutoRun(auto, first=6)
    auto._tiers.clocks[True].seconds = auto._tiers.clocks[False].seconds  # as if it were as quick
    decoding.steps(40)
    assert 6 in full.live
    decoding.end()
    auto.end(second)
    assert {5, 6}.isdisjoint(full.live | quick.live)


@pytest.mark.parametrize(("seconds", "tier"), [(1e-4, FULL), (0.2, TEXT)])
def test_answers_of_the_target_are_read_back_only_where_they_gain_more_than_reading_costs(seconds, tier):
    """Nodes are nearly free; reading ids back takes ``seconds`` a step and a tenth of that a row."""
    curves = {n: ((n, 64 * n), (1.0 + seconds * (1 + 0.1 * n), 1.0 + seconds * (1 + 6.4 * n))) for n in (1, 16)}
    source = ReadBackSource(claim=0.9)
    source.from_text = ("source",) if tier == TEXT else ()  # all that it is right about comes from its text
    made = AutoRun(Auto([source], StepCosts(curves, {}, {1: 1.0, 16: 1.0}))).decided(300)
    assert made[0].tier == FULL
    assert np.mean([decision.tier == tier for decision in made[100:]]) > 0.75
    assert any(decision.tier == FULL for decision in made[100:])  # tried again, rarely
    assert not any(decision.reads_back for decision in made if decision.tier == TEXT)


def test_a_pause_ends_when_drafts_would_have_been_right_meanwhile():
    auto = create("auto", SpeculatorOptions(step_costs=line(0.05)))
    decoding = AutoRun(auto, target=HashTarget(4096, 4096))
    unpredictable = decoding.steps(150)
    decoding.target = HashTarget(VOCAB, 1)
    repetitive = decoding.steps(150)
    assert np.mean(np.array(unpredictable[50:]) > 0) < 0.15
    assert sum(repetitive[60:]) > 90  # soon most tokens are drafted


@pytest.mark.usefixtures("steady_clocks")
def test_requests_share_what_they_learn_about_an_expensive_source_until_it_proves_right():
    slow = ReadBackSource(claim=0.9, accuracy=0.0, name="slow")
    auto = Auto([TextSource(claim=0.9, depth=2, name="quick"), slow], line(0.02))
    auto._tiers.clocks[True].seconds = 0.5  # of a step of one second

    def count_probes(first, n):
        """How many of 60 steps ask all sources, of ``n`` requests one after the other."""
        probes = []
        for number in range(first, first + n):
            decoding = AutoRun(auto, first=number)
            probes.append(sum(decision.tier == FULL for decision in decoding.decided(60)))
            decoding.end()
        return probes

    first, *others = count_probes(0, 40)
    assert first > 3
    assert sum(others) < 40 * 60 / 100
    assert any(others)  # now and then it is tried
    slow.accuracy = 1.0
    count_probes(40, 40)
    assert min(count_probes(80, 5)) > 30  # all but the first 16 drafts, from text alone


@pytest.mark.usefixtures("steady_clocks")
@pytest.mark.parametrize(("accuracy", "seconds"), [(0.0, 1e-4), (0.0, 0.5), (0.6, 1e-4), (0.6, 0.5)])
def test_the_targets_drafter_drafts_ahead_where_the_next_draft_is_one_of_all_sources(accuracy, seconds):
    """With and without pauses (accuracy of drafts from text), at a low and a high cost of all sources."""

    class DrafterSource(ReadBackSource):
        needs = Needs(node_top_k=4, drafter=True)

    quick = TextSource(claim=0.9, accuracy=accuracy, depth=2, name="quick")
    auto = Auto([quick, DrafterSource(claim=0.9, accuracy=0.5)], FREE)
    auto._tiers.clocks[True].seconds = seconds
    outcomes = {(True, True): 0, (False, False): 0, (True, False): 0, (False, True): 0}
    for number in range(8):
        request = make_request(number)
        drafts_ahead = auto.needs_of(request.request).drafts_first
        auto.begin(request)
        for _ in range(60):
            (draft,) = auto.propose_batch((request,), (16,))
            state = auto.states[request.request_id]
            if draft.decision is not BACKS_OFF:
                outcomes[drafts_ahead, state.all_draft] += 1
            drafts_ahead = draft.drafts_next
            rests = draft.rests
            while rests:
                outcome = TARGET.score(request.context.view.tolist(), compose(draft, 16))
                request.context.extend(outcome.tokens)
                rests, draft = request.request_id not in auto.settle([request], [outcome], 0.0), Draft()
            outcome = TARGET.score(request.context.view.tolist(), compose(draft, 16))
            request.context.extend(outcome.tokens)
            auto.observe(request, outcome)
        auto.end(request)
    assert outcomes[True, True] + outcomes[False, False] > 0.97 * sum(outcomes.values())
    assert outcomes[True, True] > 3


@pytest.mark.parametrize(("accuracy", "least", "most"), [(1.0, 40, 40), (0.0, 1, 2)])
def test_prompts_are_read_back_where_drafts_save_more_than_that_takes(accuracy, least, most):
    auto = Auto([PromptSource(claim=0.9, accuracy=accuracy)], StepCosts(line(0.05).curves, prompt_row=0.1))
    for number in range(40):
        decoding = AutoRun(auto, first=number)
        decoding.steps(20)
        decoding.end()
    request = Request(list(range(30)), SamplingParams(max_tokens=20))
    assert least <= sum(auto.needs_of(request).prompt_top_k > 0 for _ in range(40)) <= most
    assert auto.needs.prompt_top_k == 4  # of the method: the server must be able to read so many
    other = Request([1] * 30, SamplingParams(max_tokens=20), scope="another")
    assert auto.needs_of(other).prompt_top_k == 4  # nothing is known there
