"""Sources of known worth, and requests that decode with them step by step."""

import random

from msgspec.structs import replace

from engine.composer import compose
from engine.protocol import NO_REST, Branch, Needs, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.step_cost import StepCosts
from speculators.auto.config import AutoConfig
from speculators.auto.prices import Prices
from speculators.auto.sharing import share_out
from speculators.auto.sources import FIRST_DRAFTING
from speculators.auto.speculator import Auto
from speculators.testing import HashTarget

VOCAB = 64
TARGET = HashTarget(VOCAB)
FREE = StepCosts({1: ((1, 1000), (1.0, 1.0))})


def line(per_row):
    """Steps of a second, and so much more for every row; what drafting itself takes does not count beside that."""
    return StepCosts({1: ((1, 1001), (1.0, 1.0 + 1000 * per_row))})


class Source:
    """Drafts chains of ``claim`` per token that are right with probability ``accuracy`` per token; keeps a log."""

    needs = Needs()

    def __init__(self, claim=0.9, accuracy=1.0, depth=8, name="source", fails_in=()):
        self.name = name
        self.claim = claim
        self.accuracy = accuracy
        self.depth = depth
        self.fails_in = fails_in
        self.live = set()
        self.asked = []  # request ids
        self._chance = random.Random(7)

    def _attempt(self, what):
        if what in self.fails_in:
            raise RuntimeError(f"{what} is broken")

    def begin(self, request):
        self.live.add(request.request_id)
        self._attempt("begin")

    def propose(self, request, budget):
        self.asked.append(request.request_id)
        self._attempt("propose")
        right = TARGET.generate(request.context.view.tolist(), min(self.depth, budget))
        tokens = [token if self._chance.random() < self.accuracy else (token + 1) % VOCAB for token in right]
        scores = None if self.claim is None else [self.claim] * len(tokens)
        return [Branch(tokens, self.name, scores=scores)]

    def observe(self, request, outcome):
        self._attempt("observe")

    def end(self, request):
        self.live.discard(request.request_id)
        self._attempt("end")


class Told(Source):
    """Reads everything back, and counts what it hears."""

    needs = Needs(node_top_k=4)
    catches_up = True

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.heard = 0

    def observe(self, request, outcome):
        self.heard += 1


class Quick(Source):
    """Needs nothing, and reads what it missed from the text."""

    catches_up = True


class Fixed(Source):
    """Drafts the branches it was given."""

    def __init__(self, branches, name="fixed"):
        super().__init__(name=name)
        self.branches = branches

    def propose(self, request, budget):
        self.asked.append(request.request_id)
        return list(self.branches)


class Decoding:
    """Requests that decode side by side, in the steps of one batch."""

    def __init__(self, speculator, n=1, first=0, target=TARGET):
        self.speculator = speculator
        self.target = target
        self.requests = [make_request(first + i, target.vocab_size) for i in range(n)]
        self.rows = []  # of every step
        self.rests = {}
        self.unheard = {request.request_id: [] for request in self.requests}
        self.decisions = {request.request_id: [] for request in self.requests}  # step by step
        for request in self.requests:
            speculator.begin(request)

    @property
    def n_tokens(self):
        return sum(
            len(request.context) - request.n_prompt + len(self.unheard[request.request_id]) for request in self.requests
        )

    def step(self, budget=32):
        """Nodes per request; those whose speculator rests are neither asked nor told, as the scheduler does it."""
        for request in self.requests:
            rest = self.rests.get(request.request_id, NO_REST)
            self.rests[request.request_id] = rest._replace(n_steps=rest.n_steps - 1)
        asked = [request for request in self.requests if self.rests[request.request_id].n_steps < 0]
        drafts = self.speculator.propose_batch(asked, [budget] * len(asked)) if asked else []
        drafts = {request.request_id: branches for request, branches in zip(asked, drafts, strict=True)}
        sizes = []
        for request in self.requests:
            number = request.request_id
            rest, branches = self.rests[number], drafts.get(number, ())
            if number in drafts:
                rest = self.rests[number] = getattr(branches, "rest", NO_REST)
                decision = getattr(branches, "decision", None)
            else:
                decision = rest.decision
            self.decisions[number].append(decision)
            tree = compose(branches, budget)
            outcome = self.target.score(request.context.view.tolist() + self.unheard[number], tree)
            self.unheard[number] += outcome.tokens
            if not rest.n_steps:
                tokens, self.unheard[number] = self.unheard[number], []
                request.context.extend(tokens)
                self.speculator.observe(request, replace(outcome, tokens=tokens))
            sizes.append(len(tree))
        self.rows.append(len(sizes) + sum(sizes))
        return sizes

    def steps(self, n, budget=32):
        """Nodes of all requests together, step by step."""
        return [sum(self.step(budget)) for _ in range(n)]

    def end(self):
        for request in self.requests:
            self.speculator.end(request)


def make_request(number=0, vocab_size=VOCAB):
    prompt = [number % vocab_size, 3 * number % vocab_size, 7]
    return RequestView.of(number, Request(prompt, SamplingParams()), vocab_size)


def first_draft(costs, source, budget=32):
    return Decoding(Auto([source], costs)).step(budget)[0]


def shared_out(costs, reaches, batch, margin=None):
    """Nodes per draft, if drafts take what is assumed before the first and nothing is read back."""
    price = Prices(costs).of(batch, 0, sum(map(len, reaches)))
    margin = AutoConfig().margin if margin is None else margin
    return share_out(reaches, [False] * len(reaches), price, FIRST_DRAFTING * len(reaches), margin)


def decided(decoding, n_steps):
    """What was decided about the first request, step by step."""
    decoding.steps(n_steps)
    return decoding.decisions[decoding.requests[0].request_id]
