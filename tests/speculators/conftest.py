"""A tiny decode loop: what the engine does, without an engine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from engine.composer import compose
from engine.protocol import Branch, Outcome, RequestView, Speculator
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.tree import EMPTY_TREE
from speculators.testing import HashTarget


@dataclass
class Step:
    """One step of a decode run, before it is observed."""

    request: RequestView
    branches: list[Branch]  # proposed behind the context
    outcome: Outcome  # what the target made of them; not yet in the context


def make_request(prompt, request_id=0, seed=0, vocab_size=64):
    return RequestView.of(request_id, Request(prompt, SamplingParams(seed=seed)), vocab_size)


def steps(
    speculator: Speculator, target: HashTarget, request: RequestView, n_tokens: int, budget: int = 64
) -> Iterator[Step]:
    """Decode greedily; yields every step, then lets the speculator observe it."""
    speculator.begin(request)
    outcome = Outcome([target.next_token(request.context.view.tolist())], EMPTY_TREE)
    while True:
        request.context.extend(outcome.tokens)
        speculator.observe(request, outcome)
        if len(request.context) - request.n_prompt >= n_tokens:
            break
        branches = speculator.propose(request, budget)
        tree = compose(branches, budget)
        outcome = target.score(request.context.view.tolist(), tree)
        yield Step(request, branches, outcome)
    speculator.end(request)


@pytest.fixture(scope="session")
def new_request() -> Callable[..., RequestView]:
    return make_request


@pytest.fixture(scope="session")
def decode_steps() -> Callable[..., Iterator[Step]]:
    return steps


@pytest.fixture(scope="session")
def decode() -> Callable[..., tuple[list[int], int]]:
    """(speculator, target, prompt, n_tokens, budget) -> (tokens, number of steps)."""

    def run(speculator, target, prompt, n_tokens, budget=64):
        request = make_request(prompt, vocab_size=target.vocab_size)
        n_steps = sum(1 for _ in steps(speculator, target, request, n_tokens, budget))
        return request.context.view[len(prompt) :].tolist()[:n_tokens], n_steps

    return run
