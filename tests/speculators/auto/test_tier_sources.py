"""Which sources the tiers of ``auto`` ask, from when on, and how far each tier is believed."""

import numpy as np
import pytest

from engine.protocol import Needs, Outcome
from engine.step_cost import StepCosts
from engine.tree import EMPTY_TREE
from speculators.auto.config import AutoConfig
from speculators.auto.decisions import FULL, TEXT
from speculators.auto.speculator import Auto
from speculators.registry import SpeculatorOptions, create
from tests.support.auto_sources import Decoding, Quick, Told, decided, make_request


@pytest.mark.parametrize(
    ("sources", "text", "every"),
    [
        ((), ["pld", "prediction"], ["suffix+token-recycling", "prediction"]),
        (("pld", "spectra-core"), ["pld", "prediction"], ["pld", "spectra-core", "prediction"]),
        (
            ("suffix", "token-recycling"),
            ["suffix+token-recycling", "prediction"],
            ["suffix+token-recycling", "prediction"],
        ),
        (("prediction", "token-recycling"), ["token-recycling", "prediction"], ["prediction", "token-recycling"]),
        (
            ("token-recycling", "anpd", "pld"),
            ["anpd", "pld", "prediction"],
            ["token-recycling", "anpd", "pld", "prediction"],
        ),
    ],
)
def test_the_text_tier_asks_what_needs_nothing_and_the_mixed_model_does_without_it(sources, text, every):
    found = create("auto", SpeculatorOptions(auto=AutoConfig(sources=sources)))._sources
    assert [part.name for part in found.asked(False)] == text
    assert [part.name for part in found.asked(True)] == every


@pytest.mark.usefixtures("steady_clocks")
@pytest.mark.parametrize(("seconds", "first"), [(4e-4, TEXT), (1.0, FULL)])
def test_a_request_begins_with_text_where_all_sources_take_a_good_part_of_its_step(seconds, first):
    quick, full = Quick(claim=0.9), Told(claim=0.9)
    costs = StepCosts({1: ((1, 200), (seconds, 1.01 * seconds))})
    made = decided(Decoding(Auto([full, quick], costs)), 12)
    assert made[0].tier == first
    assert (full.asked == []) == (first == TEXT)
    if first == TEXT:
        assert full.heard == 0
        assert {decision.tier for decision in made} == {TEXT}


class OfPrompts(Told):
    """Would like to hear what the target says behind a prompt, too."""

    needs = Needs(node_top_k=4, prompt_top_k=4)


def two_requests(seconds):
    """The first has run steps so long, the second has begun; with what is read back of its prompt."""
    quick, full = Quick(claim=0.9), OfPrompts(claim=0.9)
    auto = Auto([full, quick], StepCosts({1: ((1, 200), (seconds, 1.01 * seconds))}))
    Decoding(auto).steps(3)
    second = make_request(5)
    top_k = auto.needs_of(second.request).prompt_top_k
    auto.begin(second)
    return auto, quick, full, second, top_k


@pytest.mark.usefixtures("steady_clocks")
@pytest.mark.parametrize(("seconds", "later"), [(4e-4, True), (1.0, False)])
def test_a_source_that_will_not_be_asked_at_first_begins_when_it_is(seconds, later):
    auto, quick, full, second, top_k = two_requests(seconds)
    assert second.request_id in quick.live
    assert (second.request_id not in full.live) == later
    assert top_k == (0 if later else 4)
    heard = full.heard
    auto.observe(second, Outcome([9], EMPTY_TREE, n_read=3))  # the prompt, of which nothing was read back
    assert (full.heard == heard) == later
    decoding = Decoding(auto, first=6)
    auto._tiers.clocks[True].seconds = auto._tiers.clocks[False].seconds  # as if it were as quick
    decoding.steps(40)
    assert {6} <= full.live
    decoding.end()
    auto.end(second)
    assert {5, 6}.isdisjoint(full.live | quick.live)


@pytest.mark.usefixtures("steady_clocks")
def test_what_was_read_back_of_a_prompt_is_heard_by_all_sources():
    """Whether it would be was decided when the request was submitted, and others have run since."""
    auto, _, full, second, _ = two_requests(4e-4)
    ids = np.zeros((3, 4), np.int32)
    heard = full.heard
    auto.observe(second, Outcome([9], EMPTY_TREE, n_read=3, prompt_top_ids=ids))
    assert second.request_id in full.live
    assert full.heard == heard + 1


def test_a_tier_is_calibrated_by_its_own_record():
    """Text that is always right says nothing of sources that never are."""
    quick, full = Quick(claim=0.9), Told(claim=0.9, accuracy=0.0)
    auto = Auto([full, quick], StepCosts({1: ((1, 200), (1.0, 21.0))}))
    decoding = Decoding(auto)
    decided(decoding, 400)
    state = auto._requests[decoding.requests[0].request_id]
    text, both = (calibration.factors(calibration) for calibration in state.calibrations)
    assert text[0] > 0.9
    assert both[0] < text[0]
