"""``auto`` on a real target: whenever it drafts and whenever it does not, the text is that of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from engine.loop import Completion
from engine.protocol import Branch, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.step_cost import StepCosts
from engine.target.step_timing import measure
from speculators.auto.prices import Prices
from speculators.auto.speculator import Auto
from speculators.ngrams.pld import PromptLookup
from speculators.spectra.core import SpectraCore
from speculators.successors.speculator import Successors
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts

N_TOKENS = 40
STYLES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.8, "seed": 11},
    "rejection": {"temperature": 0.8, "seed": 11, "verification": "rejection"},
}
SOURCES = {
    "successors": lambda: [Successors()],
    "pld": lambda: [PromptLookup()],
    "with probes": lambda: [Successors(), SpectraCore()],
}


def line(per_row: float) -> StepCosts:
    """Steps of a second, and so much more for every row of a step of one sequence or of many."""
    return StepCosts({batch: ((batch, 300), (1.0, 1.0 + (300 - batch) * per_row)) for batch in (1, 8)})


class Recorded(Auto):
    """Writes down the nodes of every draft; every third step costs ten times as much as the others."""

    def __init__(self, parts: Sequence[Any], costs: StepCosts | None, dear: StepCosts | None = None) -> None:
        super().__init__(parts, costs)
        self.sizes: list[int] = []
        self._turns = (costs, costs, dear or costs)

    def propose_batch(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[list[Branch]]:
        costs = self._turns[len(self.sizes) % 3]
        self._prices = None if costs is None else Prices(costs)
        drafts = super().propose_batch(requests, budgets)
        self.sizes += [sum(len(branch.tokens) for branch in draft) for draft in drafts]
        return drafts


def jobs_for(texts: list[list[int]], method: str, style: str) -> list[Request]:
    return [
        Request(text, SamplingParams(max_tokens=N_TOKENS, stop_ids=(2,), **STYLES[style]), method) for text in texts
    ]


@cache
def plain(style: str) -> list[list[int]]:
    """What the target writes behind the prompts without speculation."""
    return texts_of(
        complete_all(make_engine(make_target("llama")), jobs_for(random_prompts(3), "autoregressive", style), 3)
    )


def texts_of(done: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in done]


@pytest.mark.parametrize("style", ["greedy", "seeded"])
@pytest.mark.parametrize("sources", SOURCES)
@pytest.mark.parametrize("per_row", [None, 0.02, 0.2, 5.0])
def test_the_text_is_that_of_plain_decoding_at_any_price(
    per_row: float | None,
    sources: str,
    style: str,
) -> None:
    for batch, stages in ((1, 1), (3, 2)):
        auto = Recorded(SOURCES[sources](), None if per_row is None else line(per_row))
        runner = make_engine(make_target("llama", stages=stages), extra={"auto": lambda _, auto=auto: auto})
        done = complete_all(runner, jobs_for(random_prompts(3), "auto", style), batch)
        assert texts_of(done) == plain(style)
        if per_row in (None, 0.02):
            assert any(auto.sizes)
        elif per_row == 5.0:
            assert not any(auto.sizes)
        assert auto._requests == {}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_price_that_comes_and_goes_switches_drafting_on_and_off_within_a_text(family: str, style: str) -> None:
    texts = random_prompts(3)
    plain = complete_all(make_engine(make_target(family)), jobs_for(texts, "autoregressive", style), 3)
    auto = Recorded([Successors()], line(0.01), dear=line(5.0))
    done = complete_all(
        make_engine(make_target(family), extra={"auto": lambda _: auto}), jobs_for(texts, "auto", style), 1
    )
    switches = sum(bool(one) != bool(other) for one, other in zip(auto.sizes, auto.sizes[1:], strict=False))
    assert switches >= 4
    if style != "rejection":  # its text is drawn from the same distribution, but it is another text
        assert texts_of(done) == texts_of(plain)
    assert sum(completion.stats.drafted_tokens for completion in done) > 0
    for completion in done:
        assert len(completion.token_ids) == 1 + sum(completion.stats.step_tokens)


def test_what_was_measured_on_the_target_itself_can_be_drafted_with() -> None:
    made = make_target("llama", n_blocks=300)
    auto = Recorded([Successors()], measure(made))
    texts = random_prompts(4)
    plain = complete_all(make_engine(make_target("llama")), jobs_for(texts, "autoregressive", "greedy"), 4)
    done = complete_all(make_engine(made, extra={"auto": lambda _: auto}), jobs_for(texts, "auto", "greedy"), 4)
    assert texts_of(done) == texts_of(plain)
