"""Targets of two small layers, run by the executor or by modules as on a CPU."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

from engine.cuda.executor import Executor
from engine.drafter.part import NO_DRAFTER, DrafterPart
from engine.grammar.compiler import Grammars
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import SequenceStart, Step, Work
from engine.target_model.info import TargetInfo
from engine.target_model.local import LocalTarget
from engine.tree import TokenTree

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


@cache
def small_model(family: str) -> Any:
    """A seeded fp32 model, never changed by tests."""
    torch.manual_seed(5)
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**_SIZES)).float().eval()
    config = Gemma3TextConfig(
        **{**_SIZES, "initializer_range": 0.1, "num_key_value_heads": 2},
        sliding_window=12,
        layer_types=["sliding_attention", "full_attention"],
        final_logit_softcapping=30.0,
        query_pre_attn_scalar=8,
    )
    return Gemma3ForCausalLM(config).float().eval()


def small_shards(family: str, stages: int) -> list[ModelShard]:
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
    """A target whose stages have executors if it is ``exact``; they record graphs if ``records``."""
    shards = small_shards(family, stages)
    executors = [Executor(shard, None, SPLIT, buckets, records=records) for shard in shards] if exact else []
    return LocalTarget.of_shards(TargetInfo(shards[0].spec, 80, 4, 120), shards, grammars=grammars, executors=executors)


BLOCK, N_BLOCKS = 4, 80
NO_NEEDS = Needs()


class ShuffledPipeline:
    """Stages with executors, and sequences in shuffled blocks."""

    def __init__(
        self,
        shards: Sequence[ModelShard],
        seed: int,
        needs: Needs = NO_NEEDS,
        exact: bool = True,
        partial_bytes: int = 1 << 20,
        executors: Sequence[Executor] = (),
        drafter: DrafterPart = NO_DRAFTER,
    ) -> None:
        self._executors: Sequence[Executor | None] = executors or [
            Executor(shard, None, SPLIT, BUCKETS, partial_bytes) if exact else None for shard in shards
        ]
        self.stages = [
            Stage(shard, N_BLOCKS, BLOCK, drafter=drafter, executor=one)
            for shard, one in zip(shards, self._executors, strict=True)
        ]
        self._shards, self._needs = shards, needs
        self._blocks = random.Random(seed).sample(range(N_BLOCKS), N_BLOCKS)
        self._given: dict[int, int] = {}
        self._n_steps = 0
        self.activations: Activations | None = None  # of the last step

    def work(
        self, seq: int, n_cached: int, tokens: list[int], tree: TokenTree | None = None, keep: Sequence[int] = ()
    ) -> Work:
        """A sequence's work in the next step; ``keep``: accepted rows of the previous step's tree."""
        n_blocks = -(-(n_cached + len(tokens) + len(tree or ())) // BLOCK)
        n_new = max(0, n_blocks - self._given.get(seq, 0))
        new, self._blocks = self._blocks[:n_new], self._blocks[n_new:]
        return Work(seq, n_cached, tokens, tree, [*keep], new)

    def score(self, works: list[Work]) -> Tensor:
        """Logits of all rows, ``[n_rows, vocab]``."""
        hidden, last = self.run(works), self._executors[-1]
        with torch.inference_mode():
            return (self._shards[-1] if last is None else last).logits(hidden).clone()

    @torch.inference_mode()
    def run(self, works: list[Work]) -> Tensor:
        """Hidden states of all rows, ``[n_rows, hidden]``."""
        starts = [
            SequenceStart(work.seq, SamplingParams(), 1, self._needs) for work in works if work.seq not in self._given
        ]
        for work in works:
            self._given[work.seq] = self._given.get(work.seq, 0) + len(work.new_blocks)
        self._n_steps += 1
        step, activations = Step(self._n_steps, works, starts), None
        for stage in self.stages:
            stage.admit(step)
            stage.prepare(step)
            activations = stage.forward(step, activations)
        self.activations = activations
        assert isinstance(activations, Activations)
        return activations.hidden[0]
