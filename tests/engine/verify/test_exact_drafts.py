"""Proof by enumeration: what speculators draft, by a model, by rule or both, leaves the target's distribution alone."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch
from msgspec import structs
from transformers import LlamaConfig, LlamaForCausalLM

from engine.composer import compose
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.protocol import Branch, Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.sampling.randomness import Randomness
from engine.target.info import TargetInfo
from engine.tree import EMPTY_TREE, TokenTree
from engine.verify.rules import decide_rejection
from speculators.draft_model.config import DraftModelConfig
from speculators.draft_model.drafter import Drafter
from speculators.draft_model.speculator import DraftModel
from speculators.mixing.combined import Combined
from speculators.successors.config import SuccessorConfig
from speculators.successors.speculator import Successors
from tests.support.enumeration import EXACT, SETTINGS, VOCAB, Target, every_outcome, worst_error
from tests.support.reference_walks import walk


@lru_cache
def small_model() -> Drafter:
    """A drafter with weights over the same three tokens."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        initializer_range=0.7,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).float()
    spec = read_spec(model.config)
    return Drafter(ModelShard(model, spec, split_layers(1, 1)[0], 64), TargetInfo(spec, 16, 4, 32))


def model_draft(random: Randomness, params: SamplingParams, *others: Branch) -> TokenTree:
    """What ``draft-model`` drafts with its draws from ``random``, before or after other guesses."""
    speculator = DraftModel(DraftModelConfig(draft_tokens=2), small_model(), lambda key: random)
    request = RequestView.of(0, Request([1, 0, 2, 1], structs.replace(params, verification="rejection")), VOCAB)
    speculator.begin(request)
    branches = speculator.propose(request, 8)
    speculator.end(request)
    assert branches[0].q is not None
    return compose([*others, *branches], 8)


@pytest.mark.parametrize("others", [(), (Branch([1, 2], "pld"),)], ids=["alone", "behind a guess"])
@pytest.mark.parametrize("params", SETTINGS, ids=["T1", "T0.4", "top-k", "top-p", "top-1", "min-p and bias"])
def test_drafts_of_a_model_yield_the_autoregressive_distribution(
    params: SamplingParams, others: tuple[Branch, ...]
) -> None:
    assert worst_error(Target(params), lambda random: model_draft(random, params, *others)) < EXACT


def combined_draft(random: Randomness, params: SamplingParams, draws_first: bool, budget: int) -> TokenTree:
    """What a combination of the mixed model and ``draft-model`` drafts, behind a text both know something about."""
    model = DraftModel(DraftModelConfig(draft_tokens=2), small_model(), lambda key: random)
    mixed = Successors(SuccessorConfig(), ("suffix", "token-recycling"))
    combined = Combined([model, mixed] if draws_first else [mixed, model])
    params = structs.replace(params, verification="rejection")
    request = RequestView.of(0, Request([1, 0, 2, 1, 0, 1], params), VOCAB)
    combined.begin(request)
    branches = combined.propose(request, budget)
    combined.end(request)
    assert any(branch.q is not None for branch in branches)
    assert any(branch.source == mixed.name for branch in branches)
    return compose(branches, budget)


@pytest.mark.parametrize("budget", [3, 8])
@pytest.mark.parametrize("draws_first", [True, False])
@pytest.mark.parametrize("params", SETTINGS[::2], ids=["T1", "top-k", "top-1"])
def test_combinations_yield_the_autoregressive_distribution(
    params: SamplingParams, draws_first: bool, budget: int
) -> None:
    assert worst_error(Target(params), lambda random: combined_draft(random, params, draws_first, budget)) < EXACT


@pytest.mark.parametrize("params", SETTINGS, ids=["T1", "T0.4", "top-k", "top-p", "top-1", "min-p and bias"])
def test_drafts_by_rule_yield_the_autoregressive_distribution(params: SamplingParams) -> None:
    """The mixed model drafts without luck, and for rejection without knowing the noise."""
    speculator = Successors(SuccessorConfig(), ("suffix", "token-recycling"))
    context = [1, 0, 2, 1, 0, 1]
    request = RequestView.of(0, Request(context, structs.replace(params, verification="rejection")), VOCAB)
    speculator.begin(request)
    target = Target(params)
    p = np.stack([target.p(())] * len(context))
    ids = np.argsort(-p).astype(np.int32)
    logprobs = np.log(np.maximum(np.take_along_axis(p, ids, 1), 1e-9)).astype(np.float32)
    speculator.observe(request, Outcome([], EMPTY_TREE, prompt_top_ids=ids, prompt_top_logprobs=logprobs))
    tree = compose(speculator.propose(request, 8), 8)
    assert len(tree) == 8
    assert worst_error(target, lambda random: tree) < EXACT


def test_a_model_accepts_more_by_its_distribution_than_by_its_tokens() -> None:
    """``min(1, p / q)`` is what ``q`` is handed over for: with it, less is rejected."""
    target, params = Target(SETTINGS[0]), SETTINGS[0]

    def accepted(keeps_q: bool) -> float:
        def step(random: Randomness) -> int:
            tree = model_draft(random, params)
            if not keeps_q:
                tree = TokenTree(tree.tokens, tree.parents)
            p = target.table(tree)
            return len(walk(tree, lambda node: decide_rejection(p[node + 1], tree, node, random))[0])

        return sum(n * weight for n, weight in every_outcome(step))

    assert accepted(keeps_q=True) > accepted(keeps_q=False) + 0.05
