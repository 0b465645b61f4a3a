"""Sources of known accuracy, and requests that decode with them step by step."""

from __future__ import annotations

import random
from typing import Any

from engine.composer import compose
from engine.protocol import Branch, Needs, Outcome, RequestView
from engine.step_cost import StepCosts
from speculators.auto.config import AutoConfig
from speculators.auto.prices import Prices
from speculators.auto.sharing import share_out
from speculators.auto.sources import FIRST_DRAFTING
from speculators.auto.speculator import Auto
from speculators.testing import HashTarget
from tests.speculators.drafts import Scripted, view

VOCAB = 64
TARGET = HashTarget(VOCAB)
FREE = StepCosts({1: ((1, 1000), (1.0, 1.0))})


def line(per_row: float) -> StepCosts:
    """A step takes a second, and ``per_row`` more for every row; drafting takes next to nothing."""
    return StepCosts({1: ((1, 1001), (1.0, 1.0 + 1000 * per_row))})


class FakeSource(Scripted):
    """Drafts chains of ``claim`` per token that are right with probability ``accuracy`` per token, or ``branches``."""

    needs = Needs()

    def __init__(self, claim=0.9, accuracy=1.0, depth=8, name="source", fails_in="", branches=None) -> None:
        super().__init__(name, branches or [], fails_in, self.needs)
        self.claim, self.accuracy, self.depth = claim, accuracy, depth
        self._drafts_chains = branches is None
        self._chance = random.Random(7)

    @property
    def asked(self) -> list[int]:
        return self.called("propose")

    @property
    def n_observed(self) -> int:
        return len(self.called("observe"))

    @property
    def live(self) -> set[int]:
        return set(self.called("begin")) - set(self.called("end"))

    def propose(self, request: RequestView, budget: int) -> list[Branch]:
        if not self._drafts_chains:
            return super().propose(request, budget)
        self.call("propose", request)
        right = TARGET.generate(request.context.view.tolist(), min(self.depth, budget))
        tokens = [token if self._chance.random() < self.accuracy else (token + 1) % VOCAB for token in right]
        scores = None if self.claim is None else [self.claim] * len(tokens)
        return [Branch(tokens, self.name, scores=scores)]


class ReadBackSource(FakeSource):
    """Needs the ids after every node, and reads tokens it missed from the text."""

    needs = Needs(node_top_k=4)
    catches_up = True


class TextSource(FakeSource):
    """Needs nothing, and reads tokens it missed from the text."""

    catches_up = True


class AutoRun:
    """Requests that decode side by side, in the steps of one batch."""

    def __init__(self, speculator: Auto, n: int = 1, first: int = 0, target: HashTarget = TARGET) -> None:
        self.speculator, self.target = speculator, target
        self.requests = [make_request(first + i) for i in range(n)]
        self.rows: list[int] = []  # of every step
        self.resting: set[int] = set()
        self.decisions: dict[int, list[Any]] = {request.request_id: [] for request in self.requests}  # step by step
        for request in self.requests:
            speculator.begin(request)

    @property
    def n_tokens(self) -> int:
        return sum(len(request.context) - request.n_prompt for request in self.requests)

    def step(self, budget: int = 32) -> list[int]:
        """Nodes per request. As in the scheduler, the speculator settles resting requests, and neither drafts for them
        nor observes them."""
        asked = [request for request in self.requests if request.request_id not in self.resting]
        found = self.speculator.propose_batch(asked, [budget] * len(asked)) if asked else []
        drafts = {request.request_id: branches for request, branches in zip(asked, found, strict=True)}
        sizes: list[int] = []
        settled: list[tuple[RequestView, Outcome]] = []
        for request in self.requests:
            number = request.request_id
            branches = drafts.get(number, ())
            if number in drafts:
                self.decisions[number].append(branches.decision)
                self.resting |= {number} if branches.rests else set()
            else:
                self.decisions[number].append(self.decisions[number][-1])
            tree = compose(branches, budget)
            outcome = self.target.score(request.context.view.tolist(), tree)
            request.context.extend(outcome.tokens)
            if number in self.resting:
                settled.append((request, outcome))
            else:
                self.speculator.observe(request, outcome)
            sizes.append(len(tree))
        self.resting -= (
            {*self.speculator.settle(*([*column] for column in zip(*settled, strict=True)), 0.0)} if settled else set()
        )
        self.rows.append(len(sizes) + sum(sizes))
        return sizes

    def steps(self, n: int, budget: int = 32) -> list[int]:
        """Nodes of all requests together, step by step."""
        return [sum(self.step(budget)) for _ in range(n)]

    def decided(self, n: int) -> list[Any]:
        """Decisions about the first request in ``n`` steps."""
        self.steps(n)
        return self.decisions[self.requests[0].request_id]

    def end(self) -> None:
        for request in self.requests:
            self.speculator.end(request)


def make_request(number: int = 0) -> RequestView:
    return view([number % VOCAB, 3 * number % VOCAB, 7], number, VOCAB)


def run_step(auto: Auto, request: RequestView, budget: int = 32) -> Any:
    """The draft of one step whose outcome is observed."""
    draft = auto.propose(request, budget)
    outcome = TARGET.score(request.context.view.tolist(), compose(draft, budget))
    request.context.extend(outcome.tokens)
    auto.observe(request, outcome)
    return draft


def shared_out(costs: StepCosts, reaches: list[list[float]], batch: int, margin: float | None = None) -> list[int]:
    """Nodes per draft, if drafting takes the time assumed at first and nothing is read back."""
    price = Prices(costs).of(batch, 0, sum(map(len, reaches)))
    margin = AutoConfig().margin if margin is None else margin
    return share_out(reaches, [False] * len(reaches), price, FIRST_DRAFTING * len(reaches), margin)
