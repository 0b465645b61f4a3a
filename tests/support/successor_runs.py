"""Requests that decode with the mixed model."""

from engine.composer import compose
from engine.protocol import RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from speculators.successors.config import TARGET, TEXT, SuccessorConfig

BOTH = (TEXT, TARGET)
HALVES = [(TEXT,), (TARGET,), BOTH]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
SMALL = SuccessorConfig(target_rows=512, text_rows=512)


def view(prompt, request_id=0, vocab_size=48, scope="", **params):
    return RequestView.of(request_id, Request(prompt, SamplingParams(**params), scope=scope), vocab_size)


class Decoding:
    """One request, a step at a time."""

    def __init__(self, speculator, target, request, budget=24):
        self.speculator, self.target, self.request, self.budget = speculator, target, request, budget
        speculator.begin(request)
        self.drafts = []
        self._commit(target.read_prompt(request.context.view.tolist()))

    def step(self):
        branches = self.speculator.propose(self.request, self.budget)
        self.drafts.append(branches)
        context = self.request.context.view.tolist()
        self._commit(self.target.score(context, compose(branches, self.budget)))

    def _commit(self, outcome):
        self.request.context.extend(outcome.tokens)
        self.speculator.observe(self.request, outcome)

    @property
    def output(self):
        return self.request.context.view[self.request.n_prompt :].tolist()


def decode(speculator, target, request, n_steps=10, budget=24):
    run = Decoding(speculator, target, request, budget)
    for _ in range(n_steps):
        run.step()
    speculator.end(request)
    return run


def nodes(branches):
    return [token for branch in branches for token in branch.tokens]
