"""Stages driven by hand: logits of every position of a text, however it is scored."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.cuda.executor import Executor
from engine.drafter.part import NO_DRAFTER, DrafterPart
from engine.model.shard import ModelShard
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import SequenceStart, Step, Work
from engine.tree import TokenTree
from tests.engine.cuda.small_targets import BUCKETS, SPLIT

BLOCK, N_BLOCKS = 4, 80
NO_NEEDS = Needs()


class Pipeline:
    """Stages with executors, and sequences in blocks in any order."""

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
            Executor(shard, SPLIT, BUCKETS, partial_bytes) if exact else None for shard in shards
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
        """A sequence's share of the next step; ``keep``: rows of the last one's tree that were accepted."""
        n_blocks = -(-(n_cached + len(tokens) + len(tree or ())) // BLOCK)
        n_new = max(0, n_blocks - self._given.get(seq, 0))
        new, self._blocks = self._blocks[:n_new], self._blocks[n_new:]
        return Work(seq, n_cached, tokens, tree, [*keep], new)

    @torch.inference_mode()
    def score(self, works: list[Work]) -> Tensor:
        """Logits of all rows ``[n_rows, vocab]``."""
        starts = [
            SequenceStart(work.seq, SamplingParams(), 1, self._needs) for work in works if work.seq not in self._given
        ]
        for work in works:
            self._given[work.seq] = self._given.get(work.seq, 0) + len(work.new_blocks)
        self._n_steps += 1
        step, activations = Step(self._n_steps, works, starts), None
        for stage in self.stages:
            activations = stage.forward(step, activations)
        self.activations = activations
        assert isinstance(activations, Activations)
        last = self._executors[-1]
        return (self._shards[-1] if last is None else last).logits(activations.hidden[0]).clone()
