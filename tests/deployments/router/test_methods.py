"""Methods that requests may name, node limits of the model card, and memory under thousands of spellings of methods."""

from __future__ import annotations

from itertools import islice, permutations

import pytest

from deployments.options import RouterOptions
from deployments.router.admission import fill_defaults
from deployments.router.deployment import _make_card
from deployments.router.speculator_actors import SpeculatorActor
from engine.errors import UnknownMethodError
from engine.protocol import Outcome
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.step_cost import StepCosts
from engine.tree import EMPTY_TREE
from speculators.method import SpeculatorOptions
from speculators.methods import method_names
from speculators.pool import MOST_METHODS
from tests.support.methods import STANDALONE
from tests.support.virtual_pipeline import INFO

LISTED = RouterOptions("tiny", "spectra-core", methods=("pld", "suffix", "token-recycling+anpd"))


def served(method: str, options: RouterOptions | None = None, **more: object) -> Request:
    request = Request([5, 6, 7, 5, 6], SamplingParams(max_tokens=4), method, **more)  # type: ignore[arg-type]
    return fill_defaults(request, options or RouterOptions())


def test_two_hundred_methods_leave_few_speculators_and_live_requests_keep_theirs() -> None:
    joinable = [name for name in STANDALONE if name != "auto"]
    joined = ["+".join(names) for names in islice(permutations(joinable, 3), 200)]
    actor = SpeculatorActor(SpeculatorOptions())
    actor.begin(0, served("pld+suffix"), 64)
    kept = actor._pool._speculators["pld+suffix"]
    for method in joined:
        actor.begin(1, served(f" {method.replace('+', ' + ')} "), 64)
        actor.advance([(1, Outcome([7], EMPTY_TREE))], {0: 8, 1: 8})
        actor.end(1)
    assert set(actor._pool._speculators) <= {*joined, "pld+suffix"}  # one spelling each
    assert len(actor._pool._speculators) == MOST_METHODS
    assert len(actor._pool._parts) <= len(STANDALONE) + 2  # and the two halves of the mixed model, in either order
    assert actor._pool._speculators["pld+suffix"] is kept
    assert actor.advance([], {0: 8})[0]


@pytest.mark.parametrize(
    ("method", "allowed"),
    [
        ("", "spectra-core"),  # the default
        ("spectra-core", "spectra-core"),
        ("autoregressive", "autoregressive"),
        ("pld + suffix", "pld+suffix"),
        ("token-recycling+anpd", "token-recycling+anpd"),  # listed as a whole
        ("anpd+token-recycling", None),
        ("pld+anpd", None),
        ("pld+spectra-core", None),
        ("nonsense", None),
    ],
)
def test_requests_may_name_the_methods_that_the_operator_allows(method: str, allowed: str | None) -> None:
    if allowed is not None:
        assert served(method, LISTED).method == allowed
    else:
        with pytest.raises(UnknownMethodError, match=r"pld, suffix, token-recycling\+anpd") as caught:
            served(method, LISTED)
        assert caught.value.param == "method"


@pytest.mark.parametrize("method", ["pld+" * 100, "x" * 257, "+".join([*STANDALONE[:7]]), "pld+pld"])
def test_a_method_has_few_characters_and_joins_few_names_once_each(method: str) -> None:
    with pytest.raises(UnknownMethodError) as caught:
        served(method)
    assert len(str(caught.value)) < 100


@pytest.mark.parametrize(
    ("default", "named", "drafts"),
    [
        ("auto", "", "auto"),
        ("suffix+token-recycling", "", "prediction+suffix+token-recycling"),
        ("pld+prediction", "", "pld+prediction"),
        ("autoregressive", "", "autoregressive"),
        ("pld+anpd+suffix+goose+stand+lookahead", "", "pld+anpd+suffix+goose+stand+lookahead"),
        ("pld", "prediction + suffix", "prediction+suffix"),
    ],
)
def test_a_prediction_joins_the_default_method(default: str, named: str, drafts: str) -> None:
    method = served(named, RouterOptions(method=default), prediction=[6, 7]).method
    assert method == drafts
    assert method_names(method)
    assert served("", RouterOptions(method=default)).method == default


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        (RouterOptions(limit_nodes=32), (64, 64, 32)),
        (RouterOptions(scheduler=SchedulerOptions(max_step_rows=33)), (32, 32, 32)),
        (RouterOptions(fits_nodes=True), (8, 64, 256)),
    ],
)
def test_the_card_names_the_default_and_the_largest_number_of_nodes(
    options: RouterOptions, nodes: tuple[int, int, int]
) -> None:
    costs = StepCosts({1: ((1, 9, 65), (1.0, 1.0, 9.0))})  # 8 nodes and the root cost as much as the root alone
    card = _make_card(options, INFO, costs, (), ())
    assert (card.max_nodes, card.auto_nodes, card.limit_nodes) == nodes
    assert (card.default_nodes("pld+suffix"), card.default_nodes("auto")) == nodes[:2]
