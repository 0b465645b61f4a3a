"""A tiny draft model, and oracles of its text."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.protocol import RequestView
from engine.request import Request
from engine.sampling.history import History
from engine.sampling.noise import gumbel_row
from engine.sampling.params import SamplingParams
from engine.sampling.processors import process
from engine.target_model.info import TargetInfo
from speculators.draft_model.config import DraftModelConfig
from speculators.draft_model.runner import DraftModelRunner
from speculators.draft_model.speculator import DraftModel

VOCAB = 61
GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.9, seed=11)
SETTINGS = {
    "greedy": GREEDY,
    "sampled": SAMPLED,
    "truncated": SamplingParams(temperature=1.2, top_p=0.8, top_k=20, min_p=0.02, seed=3, choice=2),
    "penalties": SamplingParams(temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.4, seed=5),
    "greedy with penalties": SamplingParams(presence_penalty=1.0, repetition_penalty=1.2),
    "biased": SamplingParams(temperature=1.0, logit_bias={7: 3.0, 8: -5.0}, min_tokens=6, stop_ids=(9, 10), seed=1),
}


@lru_cache
def reference_model() -> Any:
    """The model of Hugging Face, untouched by the engine's attention."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=0.3,
        eos_token_id=2,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).float().eval()


@lru_cache
def shard() -> ModelShard:
    model = copy.deepcopy(reference_model())
    spec = read_spec(model.config)
    return ModelShard(model, spec, split_layers(spec.n_layers, 1)[0], 600)


def info(n_blocks: int = 200, block_size: int = 8, longest: int = 400) -> TargetInfo:
    return TargetInfo(shard().spec, n_blocks, block_size, longest)


def draft_model(n_blocks: int = 200, block_size: int = 8, longest: int = 400, **changes: Any) -> DraftModel:
    config = DraftModelConfig(**({"tree_nodes": 0} | changes))
    return DraftModel(config, DraftModelRunner(shard(), info(n_blocks, block_size, longest)))


def view(
    tokens: Sequence[int], number: int = 0, params: SamplingParams = GREEDY, vocab_size: int = VOCAB, **fields: Any
) -> RequestView:
    return RequestView.of(number, Request(list(tokens), params, **fields), vocab_size)


def text(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(11, VOCAB, n).tolist()


def begun(model: DraftModel, request: RequestView) -> RequestView:
    model.begin(request)
    return request


def check_integrity(model: DraftModel, live: int) -> None:
    drafter = model.drafting.runner
    drafter.blocks.check_integrity()
    assert len(drafter.cached) == live == drafter._stage.n_sequences
    if not live:
        assert drafter.blocks.n_free == drafter.blocks.n_blocks


@lru_cache(maxsize=4096)
def row(tokens: tuple[int, ...]) -> torch.Tensor:
    """Logits of Hugging Face after ``tokens``."""
    with torch.inference_mode():
        return reference_model()(torch.tensor([tokens])).logits[0, -1].float()  # type: ignore[no-any-return]


def written(tokens: Sequence[int], params: SamplingParams, n: int, n_prompt: int | None = None) -> list[int]:
    """Oracle: the text of the draft model alone after ``tokens``, token by token."""
    n_prompt = len(tokens) if n_prompt is None else n_prompt
    known = list(tokens)
    for _ in range(n):
        scores = scored(known, params, n_prompt)
        noise = 0.0 if params.is_greedy else gumbel_row((params.seed, params.choice, len(known)), VOCAB)
        known.append(int((scores + noise).argmax()))
    return known[len(tokens) :]


def scored(tokens: Sequence[int], params: SamplingParams, n_prompt: int) -> Any:
    history = History(tokens[:n_prompt], tokens[n_prompt:])
    return process(row(tuple(tokens))[None], [params], [history])[0].numpy()
