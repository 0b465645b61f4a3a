"""A draft model with its own paged KV cache: the part of ``draft-model`` that knows tensors.

It is one pipeline stage of the engine (``engine.stage.stage``) without verification. ``CachedSequence`` records which
tokens of a sequence are in the cache. A rejected draft is found by comparing it with the context (``sync``), and the
next forward pass overwrites it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.drafter.trees.choice import select_rows
from engine.errors import OutOfBlocksError
from engine.kv.blocks import BlockAllocator
from engine.model.loader import load_shard, load_spec
from engine.model.resolve import resolve
from engine.model.shard import ModelShard
from engine.protocol import Needs, RequestView
from engine.sampling.params import SamplingParams
from engine.stage.stage import Stage
from engine.step import SequenceStart, Step, Work
from engine.target_model.info import TargetInfo, plan_cache, positions
from engine.target_model.loading import whole_range
from engine.target_model.numerics import executors_of, resolve_dtype, with_numerics
from engine.target_model.options import TargetOptions
from engine.tree import IntArray, TokenTree

if TYPE_CHECKING:  # its kernels need Triton
    from engine.cuda.executor import Executor


@dataclass(slots=True)
class CachedSequence:
    """Tokens of one sequence in the draft model's cache."""

    n: int = 0  # committed tokens
    drafted: list[int] = field(default_factory=list)  # tokens after them
    new_blocks: list[int] = field(default_factory=list)  # allocated since the last forward pass

    def sync(self, context: IntArray) -> None:
        """Count the drafted tokens that were committed; the last token is always left to the next forward pass."""
        for token in self.drafted:
            if self.n >= len(context) or context[self.n] != token:
                break
            self.n += 1
        self.n = min(self.n, len(context) - 1)
        self.drafted = []


@dataclass(slots=True, frozen=True)
class SequenceRows:
    """Rows of one sequence in a forward pass: a chunk of text, or the last committed token and a tree after it."""

    seq: int
    n_cached: int  # tokens in the cache before the first row
    tokens: list[int]
    tree: TokenTree | None = None
    with_logits: Sequence[int] = ()  # rows whose logits are returned; 0 is the first token


class DraftModelRunner:
    """Runs the draft model; a sequence has the number of its request. ``executor`` runs the layers of ``shard``."""

    def __init__(self, shard: ModelShard, info: TargetInfo, executor: Executor | None = None) -> None:
        self.info = info
        self.blocks = BlockAllocator(info.n_blocks, info.block_size)
        self.cached: dict[int, CachedSequence] = {}  # the caller that drafts keeps ``n`` and ``drafted`` up to date
        self._logits = shard.logits if executor is None else executor.logits
        self._stage = Stage(shard, info.n_blocks, info.block_size, executor=executor)

    @classmethod
    def load(cls, options: TargetOptions) -> DraftModelRunner:
        """Return the runner of a checkpoint; raise ConfigError or UnsupportedModelError if it cannot be run."""
        path = resolve(options.model)
        options, spec = with_numerics(options, path), load_spec(path)
        dtype, device = resolve_dtype(options.dtype, spec, options.device), torch.device(options.device)
        info = plan_cache(spec, options, dtype.itemsize)
        shard = load_shard(path, whole_range(spec), dtype=dtype, device=device, n_positions=positions(info))
        shard.pack_linears()
        [executor] = executors_of(options, [shard])
        runner = cls(shard, info, executor)
        runner._stage.warm_up(answers=False)
        return runner

    def begin(self, view: RequestView) -> None:
        """Add a sequence that owns no block yet."""
        self.cached[view.request_id] = CachedSequence()
        self._stage.admit(Step(0, [], [SequenceStart(view.request_id, SamplingParams(), view.n_prompt, Needs())]))

    def end(self, seq: int) -> None:
        """Remove a sequence and free its blocks; an unknown one is ignored."""
        if self.cached.pop(seq, None) is not None:
            self.blocks.free(seq)
            self._stage.admit(Step(0, [], ends=[seq]))

    def reserve(self, view: RequestView, n_tokens: int) -> bool:
        """Allocate blocks for ``n_tokens`` of a sequence; evict it and return False if there are too few.

        A sequence that cannot draft must not hold blocks that others could draft with.
        """
        try:
            self.cached[view.request_id].new_blocks += self.blocks.allocate(view.request_id, n_tokens)
        except OutOfBlocksError:
            self.evict(view)
            return False
        return True

    def evict(self, view: RequestView) -> None:
        """Free the blocks of a live sequence, whose text must then be read again."""
        if self.blocks.free(view.request_id) or self.cached[view.request_id].n:
            self._stage.admit(Step(0, [], ends=[view.request_id]))
            self.begin(view)

    @torch.inference_mode()
    def forward(self, parts: Sequence[SequenceRows]) -> Tensor:
        """Return the logits of the rows ``with_logits`` of all ``parts`` in order, fp32 ``[n, vocab]``.

        Blocks must have been reserved. The caller records which of the new rows count as cached.
        """
        works: list[Work] = []
        picked: list[int] = []
        first = 0
        for part in parts:
            cached = self.cached[part.seq]
            works.append(Work(part.seq, part.n_cached, part.tokens, part.tree, [], cached.new_blocks, draw=False))
            cached.new_blocks = []
            picked += [first + row for row in part.with_logits]
            first += len(part.tokens) + (len(part.tree) if part.tree is not None else 0)
        step = Step(0, works)
        self._stage.admit(step)
        self._stage.prepare(step)
        hidden = self._stage.forward(step, None).hidden[0]
        if not picked:
            return hidden.new_empty((0, self.info.spec.vocab_size), dtype=torch.float32)
        return self._logits(select_rows(hidden, picked)).float()
