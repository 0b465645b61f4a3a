"""Which methods requests may name, and that thousands of spellings of them take no memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice, permutations
from typing import Any

import pytest

from deployments.options import RouterOptions
from deployments.router.admission import as_served
from deployments.router.draft_client import InlineDraftClient
from deployments.router.speculator_actor import SpeculatorActor
from engine.errors import UnknownMethodError
from engine.protocol import Outcome
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.tree import EMPTY_TREE
from speculators.methods import STANDALONE, method_names
from speculators.pool import MOST_METHODS, SpeculatorPool
from speculators.registry import SpeculatorOptions

JOINED = ["+".join(names) for names in islice(permutations(STANDALONE, 3), 200)]
MakeJob = Callable[..., Request]


async def test_two_hundred_methods_leave_no_more_speculators_than_there_are_names(
    serving: Any, info: Any, make_job: MakeJob
) -> None:
    pool = SpeculatorPool()
    async with serving(draft_client=InlineDraftClient(pool, info.spec.vocab_size)) as served:
        for first in range(0, len(JOINED), 50):
            spelt = [f" {method.replace('+', ' + ')} " for method in JOINED[first : first + 50]]
            await asyncio.gather(*(served.answer(make_job(1, max_tokens=2), method=method) for method in spelt))
            assert len(pool._speculators) <= MOST_METHODS + 50, "more than are kept, where all are in use"
        await served.answer(make_job(1, "pld", max_tokens=2))
    assert set(pool._speculators) <= {*JOINED, "pld"}, "one spelling each"
    assert len(pool._speculators) == MOST_METHODS
    assert len(pool._parts) <= len(STANDALONE) + 2  # and the two halves of the mixed model, in either order


def test_nor_do_they_in_an_actor_and_those_of_live_requests_stay() -> None:
    actor = SpeculatorActor(SpeculatorOptions())
    request = Request([5, 6, 7, 5, 6], SamplingParams(max_tokens=4))
    actor.begin(0, _naming(request, "pld+suffix"), 64)
    kept = actor._pool._speculators["pld+suffix"]
    for method in JOINED:
        actor.begin(1, _naming(request, method), 64)
        actor.advance([(1, Outcome([7], EMPTY_TREE))], {0: 8, 1: 8})
        actor.end(1)
    assert len(actor._pool._speculators) == MOST_METHODS
    assert len(actor._pool._parts) <= len(STANDALONE) + 2
    assert actor._pool._speculators["pld+suffix"] is kept
    assert actor.advance([], {0: 8})[0]


def _naming(request: Request, method: str) -> Request:
    return request.with_defaults(method, 8)


def test_a_part_is_made_once_however_many_methods_join_it() -> None:
    made = []
    pool = SpeculatorPool(extra={"pld": lambda options: made.append(1) or SpeculatorPool()._speculator("anpd")})
    for method in ("pld", "pld+suffix", "suffix+pld", "anpd+pld"):
        pool.needs(method)
    assert len(made) == 1


@pytest.mark.parametrize(
    ("method", "allowed"),
    [
        ("", True),
        ("spectra-core", True),  # the default
        ("autoregressive", True),
        ("pld", True),
        ("pld + suffix", True),
        ("suffix+pld", True),
        ("token-recycling+anpd", True),  # named as a whole
        ("anpd+token-recycling", False),
        ("anpd", False),
        ("pld+anpd", False),
        ("pld+spectra-core", False),
        ("nonsense", False),
    ],
)
async def test_the_operator_says_which_methods_requests_may_name(
    serving: Any, make_job: MakeJob, method: str, allowed: bool
) -> None:
    options = RouterOptions("tiny", "spectra-core", methods=("pld", "suffix", "token-recycling+anpd"), max_wait=None)
    async with serving(options=options) as served:
        if allowed:
            await served.answer(make_job(1, method, max_tokens=2))
        else:
            with pytest.raises(UnknownMethodError, match=r"pld, suffix, token-recycling\+anpd") as caught:
                await served.answer(make_job(1, method, max_tokens=2))
            assert caught.value.param == "method"


@pytest.mark.parametrize("method", ["pld+" * 100, "x" * 257, "+".join([*STANDALONE[:7]]), "pld+pld"])
async def test_a_method_has_a_length_and_joins_few_names(serving: Any, make_job: MakeJob, method: str) -> None:
    async with serving() as served:
        with pytest.raises(UnknownMethodError) as caught:
            await served.answer(make_job(1, method))
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
    request = Request([5], SamplingParams(), named, prediction=[6, 7])
    served = as_served(request, RouterOptions(method=default))
    assert served.method == drafts
    assert method_names(served.method)
    assert as_served(Request([5], SamplingParams()), RouterOptions(method=default)).method == default
