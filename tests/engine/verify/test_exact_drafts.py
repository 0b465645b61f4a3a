"""Proof by enumeration: the drafts of speculators, from a model, by rule or both, keep the target's distribution."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from msgspec import structs
from transformers import LlamaConfig, LlamaForCausalLM

from engine.composer import compose
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.protocol import Branch, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.sampling.randomness import Randomness
from engine.target.info import TargetInfo
from engine.tree import TokenTree
from speculators.draft_model.config import DraftModelConfig
from speculators.draft_model.drafter import Drafter
from speculators.draft_model.speculator import DraftModel
from speculators.mixing.combined import Combined
from speculators.successors.config import SuccessorConfig
from speculators.successors.speculator import Successors
from tests.support.enumeration import EXACT, SETTINGS, VOCAB, Target, worst_error


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


@pytest.mark.parametrize(
    ("params", "others"),
    [(params, (Branch([1, 2], "pld"),) if i % 2 else ()) for i, params in enumerate([*SETTINGS, SETTINGS[0]], start=1)],
)
def test_drafts_of_a_model_yield_the_autoregressive_distribution(
    params: SamplingParams, others: tuple[Branch, ...]
) -> None:
    assert worst_error(Target(params), lambda random: model_draft(random, params, *others)) < EXACT


def combined_draft(random: Randomness, params: SamplingParams, draws_first: bool, budget: int) -> TokenTree:
    """What a combination of the successor model and ``draft-model`` drafts after a text that repeats itself."""
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


@pytest.mark.parametrize(
    ("params", "draws_first", "budget"),
    [(SETTINGS[0], True, 3), (SETTINGS[2], False, 8), (SETTINGS[4], True, 8), (SETTINGS[0], False, 3)],
)
def test_combinations_yield_the_autoregressive_distribution(
    params: SamplingParams, draws_first: bool, budget: int
) -> None:
    assert worst_error(Target(params), lambda random: combined_draft(random, params, draws_first, budget)) < EXACT
