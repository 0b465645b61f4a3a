"""Sources of known accuracy, and requests that decode with them step by step."""

from __future__ import annotations

import random
from typing import Any

from msgspec.structs import replace

from engine.composer import compose
from engine.protocol import Branch, Needs, Outcome, RequestView, StepTime
from engine.step_cost import StepCosts
from engine.top_ids import NO_TOP_IDS
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
    """Requests that decode side by side, in the steps of one batch, which take what ``costs`` say."""

    def __init__(
        self, speculator: Auto, n: int = 1, first: int = 0, target: HashTarget = TARGET, costs: StepCosts = FREE
    ) -> None:
        self.speculator, self.target, self.costs = speculator, target, costs
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
        """Return the nodes per request; as in the scheduler, a resting request is neither asked nor observed."""
        asked = [request for request in self.requests if request.request_id not in self.resting]
        found = self.speculator.propose_batch(asked, [budget] * len(asked)) if asked else []
        drafts = {request.request_id: draft for request, draft in zip(asked, found, strict=True)}
        self.resting |= {number for number, draft in drafts.items() if draft.rests}
        trees = [compose(drafts.get(request.request_id, ()), budget) for request in self.requests]
        outcomes: dict[int, Outcome] = {}
        reads = []
        for request, tree in zip(self.requests, trees, strict=True):
            draft = drafts.get(request.request_id)
            self.decisions[request.request_id].append(None if draft is None else draft.decision)
            outcome = self.target.score(request.context.view.tolist(), tree)
            reads.append(draft is not None and (draft.decision is None or draft.decision.reads_back))
            outcomes[request.request_id] = outcome if reads[-1] else replace(outcome, top_ids=NO_TOP_IDS)
        sizes = [len(tree) for tree in trees]
        self.rows.append(len(sizes) + sum(sizes))
        n_read = sum(1 + size for size, is_read in zip(sizes, reads, strict=True) if is_read)
        reading, read_row = self.costs.read_back
        seconds = float(self.costs.seconds(len(sizes), [self.rows[-1]])[0])
        seconds -= reading * (not n_read) + read_row * (self.rows[-1] - n_read)
        took = StepTime(seconds, len(sizes), self.rows[-1], 10.0, n_read)
        outcomes = {number: replace(outcome, step=took) for number, outcome in outcomes.items()}
        for request in asked:
            if request.request_id not in self.resting:
                request.context.extend(outcomes[request.request_id].tokens)
                self.speculator.observe(request, outcomes[request.request_id])
        self._settle({number: outcomes[number] for number in self.resting})
        return sizes

    def _settle(self, resting: dict[int, Outcome]) -> None:
        requests = [request for request in self.requests if request.request_id in resting]
        for request in requests:
            request.context.extend(resting[request.request_id].tokens)
        outcomes = [resting[request.request_id] for request in requests]
        self.resting -= set(self.speculator.settle(requests, outcomes, 0.0))

    def steps(self, n: int, budget: int = 32) -> list[int]:
        """Nodes of all requests together, step by step."""
        return [sum(self.step(budget)) for _ in range(n)]

    def decided(self, n: int) -> list[Any]:
        """Decisions about the first request in ``n`` steps; None: it rested."""
        self.steps(n)
        return self.decisions[self.requests[0].request_id]

    def end(self) -> None:
        for request in self.requests:
            self.speculator.end(request)


def make_request(number: int = 0) -> RequestView:
    return view([number % VOCAB, 3 * number % VOCAB, 7], number, VOCAB)
