"""A small model with its own paged KV cache: the part of ``draft-model`` that knows tensors.

One pipeline stage of the engine (``engine.stage.stage``) without its verification: loaded by the engine's loader, fed
with the engine's step messages. What the cache of a sequence holds is remembered here, token by token behind the
context, so that a rejected draft is rolled back by comparing (``sync``) and written over by the next forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.errors import OutOfBlocksError
from engine.kv.blocks import BlockAllocator
from engine.model.loader import load_shard, load_spec
from engine.model.resolve import resolve
from engine.model.shard import ModelShard
from engine.protocol import Needs, RequestView
from engine.sampling.params import SamplingParams
from engine.stage.stage import Stage
from engine.step import SequenceStart, Step, Work
from engine.target.info import TargetInfo, positions
from engine.target.loading import plan_cache, whole_range
from engine.target.numerics import executors_of, resolve_dtype, with_numerics
from engine.target.options import TargetOptions
from engine.tree import IntArray, TokenTree
from engine.upload import Upload

if TYPE_CHECKING:  # its kernels need Triton
    from engine.cuda.executor import Executor


@dataclass(slots=True)
class Cached:
    """What the drafter's cache holds of one sequence."""

    n: int = 0  # committed tokens
    ahead: list[int] = field(default_factory=list)  # drafted tokens behind them
    new_blocks: list[int] = field(default_factory=list)  # allocated, the stage has not heard of them yet

    def sync(self, context: IntArray) -> None:
        """Keep of the drafted tokens what was committed; the last token is always left to the next forward."""
        for token in self.ahead:
            if self.n >= len(context) or context[self.n] != token:
                break
            self.n += 1
        self.n = min(self.n, len(context) - 1)
        self.ahead = []


@dataclass(slots=True, frozen=True)
class Rows:
    """One sequence's share of a forward: a chunk of text, or the last committed token and a tree behind it.

    ``wanted`` are the rows (0 the first token) whose logits are asked for.
    """

    seq: int
    n_cached: int  # tokens in the cache before the first row
    tokens: list[int]
    tree: TokenTree | None = None
    wanted: Sequence[int] = ()


class Drafter:
    """The drafting model at work; sequences by number.

    Args:
        shard: all layers of the model.
        info: cache geometry and the longest text.
        executor: runs them in its place.
    """

    def __init__(self, shard: ModelShard, info: TargetInfo, executor: Executor | None = None) -> None:
        self.info = info
        self.blocks = BlockAllocator(info.n_blocks, info.block_size)
        self.n_forwards = 0
        self._logits = shard.logits if executor is None else executor.logits
        self._stage = Stage(shard, info.n_blocks, info.block_size, executor=executor)
        self._cached: dict[int, Cached] = {}

    @classmethod
    def load(cls, options: TargetOptions) -> Drafter:
        """Load a checkpoint, with the options of a target that is one stage.

        Raises:
            ConfigError: there is no such model, or an option is wrong.
            UnsupportedModelError: the checkpoint cannot be run.
        """
        path = resolve(options.model)
        options = with_numerics(options, path)
        spec = load_spec(path)
        kind = resolve_dtype(options.dtype, spec, options.device)
        info = plan_cache(spec, options, kind)
        place = torch.device(options.device)
        shard = load_shard(path, whole_range(spec), dtype=kind, device=place, n_positions=positions(info))
        shard.pack_linears()
        [executor] = executors_of(options, [shard])
        drafter = cls(shard, info, executor)
        drafter._stage.warm_up(answers=False)
        return drafter

    def begin(self, view: RequestView) -> None:
        """Learn of a sequence; it owns no block yet."""
        seq = view.request_id
        self._cached[seq] = Cached()
        self._stage.admit(Step(0, [], [SequenceStart(seq, SamplingParams(), view.n_prompt, Needs())]))

    def end(self, seq: int) -> None:
        """Forget a sequence and free its blocks; harmless when it is unknown."""
        if self._cached.pop(seq, None) is not None:
            self.blocks.release(seq)
            self._stage.admit(Step(0, [], ends=[seq]))

    def cached(self, seq: int) -> Cached:
        """What the cache holds of a sequence; the caller that drafts keeps it up to date."""
        return self._cached[seq]

    def reserve(self, view: RequestView, n_tokens: int) -> bool:
        """Make room for ``n_tokens`` of a sequence; without room it loses what it has, and may come again later.

        Giving everything back keeps sequences that cannot go on from holding what others could draft with.
        """
        seq = view.request_id
        try:
            self._cached[seq].new_blocks += self.blocks.grow(seq, n_tokens)
        except OutOfBlocksError:
            self.evict(view)
            return False
        return True

    def evict(self, view: RequestView) -> None:
        """Free the blocks of a sequence that goes on living; its text must be read again."""
        if self.blocks.release(view.request_id) or self._cached[view.request_id].n:
            self._stage.admit(Step(0, [], ends=[view.request_id]))
            self.begin(view)

    @torch.inference_mode()
    def forward(self, parts: Sequence[Rows]) -> Tensor:
        """One forward for all ``parts``; returns the wanted rows' logits in order, fp32 ``[n_wanted, vocab]``.

        Room must have been reserved. The caller says what of the new rows counts as cached.
        """
        works = [Work(p.seq, p.n_cached, p.tokens, p.tree, [], self._take_blocks(p.seq), draw=False) for p in parts]
        hidden = self._stage.forward(Step(0, works), None).hidden[0]
        self.n_forwards += 1
        picked: list[int] = []
        first = 0
        for part in parts:
            picked += [first + row for row in part.wanted]
            first += len(part.tokens) + (len(part.tree) if part.tree is not None else 0)
        if len(picked) != hidden.shape[0]:
            upload = Upload(hidden.device)
            index = upload.add(picked)
            upload.send()
            hidden = hidden.index_select(0, index.tensor)
        if not picked:
            return hidden.new_empty((0, self.info.spec.vocab_size), dtype=torch.float32)
        return self._logits(hidden).float()

    def _take_blocks(self, seq: int) -> list[int]:
        cached = self._cached[seq]
        blocks, cached.new_blocks = cached.new_blocks, []
        return blocks
