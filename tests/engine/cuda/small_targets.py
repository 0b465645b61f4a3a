"""Targets of two small layers, run by the executor or as on a CPU."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

from engine.cuda.executor import Executor
from engine.grammar.compiler import Grammars
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.target.info import TargetInfo
from engine.target.local import LocalTarget

SPLIT, BUCKETS = 16, (1, 8, 24, 48, 96)
_SIZES: dict[str, Any] = {
    "vocab_size": 41,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# Every matrix has inputs for two parts, and for two blocks of a sum, where ``gemm.LEAST_INPUTS`` is 64.
SMALL_INPUTS, IN_PARTS = 64, " in parts"
_WIDE = {"hidden_size": 128, "intermediate_size": 160, "num_attention_heads": 4, "head_dim": 32}


@cache
def small_model(family: str) -> Any:
    """A seeded fp32 model, never changed by tests."""
    torch.manual_seed(5)
    sizes = _SIZES | (_WIDE | {"initializer_range": 0.1} if family.endswith(IN_PARTS) else {})
    if family.startswith("llama"):
        return LlamaForCausalLM(LlamaConfig(**sizes)).float().eval()
    config = Gemma3TextConfig(
        **{**sizes, "initializer_range": 0.1, "num_key_value_heads": 2},
        sliding_window=12,
        layer_types=["sliding_attention", "full_attention"],
        final_logit_softcapping=30.0,
        query_pre_attn_scalar=8,
    )
    return Gemma3ForCausalLM(config).float().eval()


def small_shards(family: str, stages: int) -> list[ModelShard]:
    """Shards of a copy."""
    model = copy.deepcopy(small_model(family))
    spec = read_spec(model.config)
    return [ModelShard(model, spec, layers, 128) for layers in split_layers(spec.n_layers, stages)]


def small_target(
    family: str,
    stages: int = 1,
    exact: bool = True,
    grammars: Grammars | None = None,
    records: bool = False,
    buckets: tuple[int, ...] = BUCKETS,
) -> LocalTarget:
    """A target whose stages have executors if it is ``exact``; these record graphs if they are told to."""
    shards = small_shards(family, stages)
    executors = [Executor(shard, SPLIT, buckets, records=records) for shard in shards] if exact else []
    return LocalTarget(TargetInfo(shards[0].spec, 80, 4, 120), shards, grammars=grammars, executors=executors)
