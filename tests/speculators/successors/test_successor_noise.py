"""What the mixed model may know of the draw: the noise of coupled sampling, and none of rejection's."""

from dataclasses import replace

import numpy as np
import pytest

from engine.protocol import Outcome
from engine.sampling.noise import gumbel_row
from engine.tree import EMPTY_TREE
from speculators.successors.config import TARGET
from speculators.successors.speculator import Successors
from speculators.testing import HashTarget
from tests.support.successor_runs import BOTH, HALVES, PROMPT, SMALL, Decoding, decode, nodes, view

# The noise.


def after_prompt(sources=BOTH, **params):
    """The draft behind a prompt that its continuation makes repeat itself."""
    target = HashTarget(48, n_successors=2)
    request = view([*PROMPT, *target.generate(PROMPT, 60)], **params)
    run = Decoding(Successors(replace(SMALL, text_width=8), sources), target, request)
    return run.speculator.propose(run.request, 24)


@pytest.mark.parametrize("sources", HALVES)
def test_rejection_sampling_must_not_know_the_noise(sources):
    """Its drafts must not depend on what the target's draw depends on: the seed, the choice."""
    drafts = [
        after_prompt(sources, temperature=0.8, verification="rejection", **key)
        for key in ({"seed": 1}, {"seed": 2}, {"seed": 1, "choice": 3})
    ]
    assert drafts[0] == drafts[1] == drafts[2] != []


@pytest.mark.parametrize("sources", HALVES)
def test_coupled_sampling_knows_it_and_greedy_has_none(sources):
    keys = [{"seed": 1}, {"seed": 2}, {"seed": 1, "choice": 1}]
    drafts = [after_prompt(sources, temperature=0.8, **key) for key in keys]
    assert drafts[0] != drafts[1] != drafts[2] != drafts[0]
    assert drafts[0] == after_prompt(sources, temperature=0.8, seed=1)
    assert after_prompt(sources, seed=1) == after_prompt(sources, seed=2)


@pytest.mark.parametrize("temperature", [0.02, 0.8, 1.3])
def test_the_first_guess_is_the_coupled_draw_where_the_target_is_known(temperature):
    """Behind a context whose whole distribution was read back, the drafter draws as the target will."""
    rng = np.random.default_rng(3)
    k, n_right = 16, 0
    for seed in range(40):
        speculator = Successors(replace(SMALL, target_orders=(1,)), (TARGET,))
        request = view([1, 2, 3], vocab_size=k, temperature=temperature, seed=seed)
        speculator.begin(request)
        p = rng.dirichlet(np.full(k, 0.7)).astype(np.float32)
        ids = np.argsort(-p).astype(np.int32)
        logprobs = np.log(p[ids])[None]
        outcome = Outcome([], EMPTY_TREE, prompt_top_ids=ids[None], prompt_top_logprobs=logprobs, prompt_start=2)
        speculator.observe(request, outcome)
        drawn = int((np.log(p.astype(np.float64)) / temperature + gumbel_row((seed, 0, 3), k)).argmax())
        (branch,) = speculator.propose(request, 8)
        n_right += branch.tokens[0] == drawn
    assert n_right == 40


@pytest.mark.parametrize("temperature", [1e-3, 0.01, 0.1, 5.0, 100.0])
@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_extreme_temperatures_do_not_break_it(temperature, verification):
    target = HashTarget(48, n_successors=2)
    request = view(PROMPT * 2, temperature=temperature, seed=5, verification=verification)
    run = decode(Successors(SMALL, BOTH), target, request, 8)
    assert run.output == target.generate(PROMPT * 2, len(run.output))
    if temperature <= 0.1:  # all but greedy: the best guess is a sure one
        assert all(nodes(branches) for branches in run.drafts)
        assert len(run.output) > 1 + len(run.drafts)
