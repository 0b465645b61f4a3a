"""Decode steps made by hand: sequences behind a context that was never computed, always in the same place.

What a step costs does not depend on the keys' values, so the context is not written: 32 sequences of 8k tokens are
ready at once. Text that is compared must be written; see ``measuring.rounding``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.measuring.geometry import BLOCK, Geometry
from benchmarks.gpu.setting import Setting
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.step import SequenceStart, Step, Work
from engine.target.info import Target, TargetInfo, positions
from engine.target.local import LocalTarget
from engine.tree import ROOT, TokenTree

HBM = 4.3e12  # bytes a second, measured on one H200
ENDLESS = 1 << 30  # tokens


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of step."""

    sequences: int
    nodes: int  # of each sequence's tree
    context: int  # committed tokens of each, the root not counted
    sampled: bool = False

    @property
    def drawing(self) -> str:
        """How tokens are chosen."""
        return "sampled" if self.sampled else "greedy"

    @property
    def name(self) -> str:
        """For notes."""
        return f"{self.sequences} x {self.nodes} nodes at {self.context}, {self.drawing}"

    @property
    def blocks_each(self) -> int:
        """KV blocks of a sequence with its tree."""
        return -(-(self.context + 1 + self.nodes) // BLOCK)


def limit(geometry: Geometry, setting: Setting, shape: Shape) -> float:
    """Seconds in which what a step must read can be read: weights, keys and values."""
    keys = 2 * geometry.n_layers * geometry.n_kv_heads * geometry.head_dim * setting.dtype.itemsize
    return (geometry.bytes_read(setting.dtype) + shape.sequences * shape.context * keys) / HBM


def bushy(n_nodes: int, vocab: int, seed: int = 0) -> TokenTree:
    """Eight children of the root, every other node below one of the twelve before it."""
    rng = random.Random(seed)
    parents = [ROOT] * min(8, n_nodes)
    parents += [rng.randrange(max(0, node - 12), node) for node in range(len(parents), n_nodes)]
    return TokenTree([rng.randrange(vocab) for _ in range(n_nodes)], parents)


def local_target(model: Any, n_blocks: int, max_model_len: int, stages: int = 1, exact: bool = False) -> LocalTarget:
    """A target on a model that is there; of several on one model only the last made may be used.

    Args:
        model: from ``random_model``.
        n_blocks: of its KV cache.
        max_model_len: tokens of the longest text.
        stages: among which the layers are split, one after the other in this process.
        exact: whether the executor of ``engine.cuda`` runs them; needs Triton, and a GPU or its interpreter.
    """
    spec = read_spec(model.config, ())
    info = TargetInfo(spec, n_blocks, BLOCK, max_model_len)
    shards = [ModelShard(model, spec, part, positions(info)) for part in split_layers(spec.n_layers, stages)]
    if not exact:
        return LocalTarget(info, shards)
    from engine.cuda.executor import Executor

    return LocalTarget(info, shards, executors=[Executor(shard) for shard in shards])


class Decoding:
    """A new target's sequences, all of them decoding; ``make`` makes the target: model, blocks, longest text."""

    def __init__(self, model: Any, shape: Shape, make: Callable[[Any, int, int], Target] = local_target) -> None:
        self._shape = shape
        self._target = make(model, shape.sequences * shape.blocks_each, shape.context + shape.nodes + 2)
        self._vocab = self._target.info.spec.vocab_size
        self._tree = bushy(shape.nodes, self._vocab)
        self._number = 0
        self._begin()

    def step(self) -> None:
        """One step of all sequences, until its tokens are on the host. Nothing is committed."""
        self._number += 1
        tree, root = self._tree, self._number % self._vocab
        work = [
            # A fresh tree for each: what is derived from it is part of a step.
            Work(seq, self._shape.context, [root], TokenTree(tree.tokens, tree.parents), max_new=ENDLESS)
            for seq in range(self._shape.sequences)
        ]
        self._run(work)

    def _begin(self) -> None:
        each = self._shape.blocks_each
        params = SamplingParams(max_tokens=ENDLESS, temperature=0.8 if self._shape.sampled else 0.0, seed=1)
        sequences = range(self._shape.sequences)
        starts = [SequenceStart(seq, params, self._shape.context, Needs()) for seq in sequences]
        blocks = [list(range(seq * each, (seq + 1) * each)) for seq in sequences]
        self._run([Work(seq, 0, [0], new_blocks=blocks[seq], draw=False) for seq in sequences], starts)

    def _run(self, work: list[Work], starts: Sequence[SequenceStart] = ()) -> None:
        self._target.step(Step(self._number, work, list(starts)))
