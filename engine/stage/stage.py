"""A pipeline stage: a shard of layers, its part of the KV cache, and on the last stage the verification.

A stage makes no decisions: blocks, trees and accepted paths come with the step. It knows sequences by number only, and
removes them when a step ends them. One thread runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
import torch

from engine.device import is_host
from engine.drafter.part import NO_DRAFTER, DrafterPart
from engine.grammar.compiler import Grammars
from engine.kv.arena import BlockTable, KVArena
from engine.model.exchange import Ranks
from engine.model.ranges import LayerRange
from engine.model.shard import ModelShard
from engine.protocol import Needs
from engine.sampling.noise import gumbel_row
from engine.stage.answer import StageSequence, StepAnswer
from engine.stage.artefacts import (
    AttentionRows,
    CapturedStep,
    CapturedWork,
    local_heads,
    local_tap,
    project,
    tap_dims,
)
from engine.stage.base import Activations, Computing
from engine.stage.device_work import DeviceWork, begin
from engine.stage.drafts import StageDrafts
from engine.stage.packing import Packed, RowMoves, pack, pack_plan, plan_moves
from engine.step import SequenceStart, Step, Work, WorkResult
from engine.upload import Upload

if TYPE_CHECKING:  # needs Triton
    from engine.cuda.executor import Executor


@dataclass(slots=True)
class _Running:
    """The step between ``prepare`` and ``attention``."""

    step: Step | None = None  # None once ``forward`` has begun
    packed: Packed | None = None
    works: Sequence[Work] = field(default_factory=list)
    answer: StepAnswer | None = None  # last stage only
    computing: DeviceWork | None = None


class Stage:
    """A range of layers and their part of the KV cache. Implements ``engine.stage.base.StageLike``.

    Args:
        shard: the layers.
        n_blocks: KV blocks, the same number on every stage of a pipeline.
        block_size: tokens per block.
        drafter: this stage's part of a trained drafter.
        grammars: compiles those of requests, on the last stage.
        executor: runs the layers and the head of ``shard`` in its place.
    """

    def __init__(
        self,
        shard: ModelShard,
        n_blocks: int,
        block_size: int,
        drafter: DrafterPart = NO_DRAFTER,
        grammars: Grammars | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._shard, self._executor = shard, executor
        self._answers = shard.range.is_last and shard.share.rank == 0
        self._grammars = grammars if self._answers else None
        self._spec = shard.spec
        self._arena = KVArena(
            len(shard.range),
            n_blocks + (executor is not None),  # one more for the padding rows of a bucket
            block_size,
            self._spec.n_kv_heads,
            self._spec.head_dim,
            shard.dtype,
            shard.device,
        )
        self._plan_shape = None if executor is None else executor.plan_shape(self._arena)
        self._tables: dict[int, BlockTable] = {}
        self._sequences: dict[int, StageSequence] = {}
        self._running = _Running()
        self._relay = drafter.relay
        self._drafts = None if drafter.runtime is None else StageDrafts(drafter.runtime, shard.norm)

    @property
    def ranks(self) -> Ranks:
        """This rank and its connection to the others; fails without tensor parallelism."""
        assert self._shard.ranks is not None, "this stage has one rank"
        return self._shard.ranks

    @property
    def layers(self) -> LayerRange:
        return self._shard.range

    @property
    def device(self) -> torch.device:
        return self._shard.device

    @property
    def has_executor(self) -> bool:
        return self._executor is not None

    @property
    def n_sequences(self) -> int:
        """Sequences the stage holds state of."""
        return len(self._sequences)

    @torch.inference_mode()
    def warm_up(self, answers: bool = True) -> None:
        """Do now what the first step would wait for; ``answers``: what its verification would wait for, too."""
        if self._answers and is_host(self._shard.device):
            gumbel_row((0, 0, 0), 1)  # compiles the noise
        if self._executor is not None:
            drafter = () if self._drafts is None else self._drafts.runtime.warm_up()
            self._executor.warm_up(self._arena, answers, drafter)

    def reset(self) -> None:
        """Remove every sequence; the contents of the cache become invalid."""
        self._tables.clear()
        self._sequences.clear()
        self._running = _Running()
        if self._drafts is not None:
            self._drafts.runtime.reset()

    def request_ids(self, step: Step) -> list[str]:
        """See ``StageLike.request_ids``."""
        return [known.start.request_id for work in step.work if (known := self._sequences.get(work.seq)) is not None]

    def outline(self, step: Step) -> torch.Tensor | None:
        """See ``StageLike.outline``."""
        known = [self._sequences[work.seq].start.needs for work in step.work if work.seq in self._sequences]
        if not known or any(needs.hidden_layer is not None or needs.drafter for needs in known):
            return None
        n_rows = sum(len(work.tokens) + (0 if work.tree is None else len(work.tree)) for work in step.work)
        return torch.empty(1, n_rows, self._spec.hidden_size, dtype=self._shard.dtype, device="meta")

    @torch.inference_mode()
    def admit(self, step: Step) -> None:
        """Remove the sequences that ended, move and add sequences, and extend block tables.

        Raises the device's error before any sequence is added: the step can then be admitted again.
        """
        for seq in step.ends:
            self._tables.pop(seq, None)
            self._sequences.pop(seq, None)
            if self._drafts is not None:
                self._drafts.runtime.end(seq)
        self._move(step.work)
        for start in step.starts:
            table = self._tables[start.seq] = BlockTable(self._arena.block_size)
            self._sequences[start.seq] = StageSequence(self._with_local_heads(start), [*start.text])
            if self._grammars is not None and start.params.grammar is not None:
                self._grammars.prepare(start.params.grammar)  # while the prompt is read
            if self._drafts is not None and start.needs.drafter:
                self._drafts.runtime.start(start.seq, table, start.n_copied)
        for work in step.work:
            if work.seq in self._tables and not work.moved:
                self._tables[work.seq].extend(work.new_blocks)

    def _with_local_heads(self, start: SequenceStart) -> SequenceStart:
        """Return a start whose needs name the query heads of this rank by its own numbers."""
        share, needs = self._shard.share, start.needs
        if share.size == 1 or not needs.heads:
            return start
        heads = share.own_heads(needs.heads, self._spec.n_heads)
        return msgspec.structs.replace(start, needs=replace(needs, heads=heads))

    def _move(self, works: Sequence[Work]) -> None:
        """Copy the rows of sequences that the scheduler has moved to other blocks."""
        for work in works:
            if work.moved and work.seq in self._tables:
                table = self._tables[work.seq]
                runs = table.runs_to(work.new_blocks)
                self._arena.move_runs(runs)
                if self._drafts is not None:
                    self._drafts.runtime.move_runs(runs)
                table.replace(work.new_blocks)

    @torch.inference_mode()
    def prepare(self, step: Step) -> None:
        """Pack an admitted step, upload it, and copy rows within the cache: all that ``forward`` needs but activations.

        The host does this while a device still computes the previous step, or an earlier stage this one.
        """
        works, upload = step.work, Upload(self._shard.device)
        moves = plan_moves(step, self._tables, self._arena.block_size, upload, compacts=self._executor is None)
        packed = self._pack(works, upload)
        needs = self._needs(works)
        packed.step.capture_heads = local_heads(needs, self._shard.range)
        packed.step.capture_index = {layer: upload.add(heads) for layer, heads in packed.step.capture_heads.items()}
        answer = None
        if self._answers:
            sequences = [self._sequences[work.seq] for work in works]
            answers = None if self._executor is None else self._executor.answers
            answer = StepAnswer(works, packed.spans, sequences, upload, self._shard, answers, self._grammars)
        upload.send()
        self._copy_rows(moves)
        self._running = _Running(step, packed, works, answer)

    @torch.inference_mode()
    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        """Run this stage's layers over a prepared step; ``incoming`` is None on the first stage."""
        running = self._running
        assert running.step is step, "a step is prepared before its forward pass"
        assert running.packed is not None, "a prepared step is packed"
        running.step = None
        computing = begin(self._shard.device)
        outgoing = self._run(self._needs(step.work), running.packed, incoming)
        if computing is not None:
            computing.end()
        running.computing = computing
        return outgoing

    def _needs(self, works: Sequence[Work]) -> list[Needs]:
        return [self._sequences[work.seq].start.needs for work in works]

    def _pack(self, works: Sequence[Work], upload: Upload) -> Packed:
        if self._plan_shape is not None:
            return pack_plan(works, self._tables, self._arena, upload, self._plan_shape)
        return pack(works, self._tables, self._arena, upload)

    def _copy_rows(self, moves: RowMoves) -> None:
        """Copy prefixes, in the drafter's cache too, and accepted paths; the drafter rewrites the rows of its paths."""
        for move in filter(None, (moves.copies, moves.compaction)):
            self._arena.copy(move.source.tensor, move.target.tensor, move.is_apart)
        if self._drafts is not None and moves.copies is not None:
            copies = moves.copies
            self._drafts.runtime.copy(copies.source.tensor, copies.target.tensor, copies.is_apart)

    def _run(self, needs: Sequence[Needs], packed: Packed, incoming: Activations | None) -> Activations:
        """Run the layers and tap the hidden states that sequences with these needs read."""
        tap = local_tap(needs, self._shard.range)
        relay = self._relay if any(need.drafter for need in needs) else None
        taps = {*([] if tap is None else [tap]), *([] if relay is None else relay.taps)}
        read, tapped, fused = None, None, None
        if incoming is not None:
            read, tapped, fused = incoming.hidden, incoming.tapped, incoming.fused
        if self._executor is None:
            assert packed.tokens is not None, "a plan is for an executor"
            assert packed.positions is not None, "a plan is for an executor"
            read = self._shard.embed(packed.tokens.tensor) if read is None else read
            hidden, outputs = self._shard.run(read, packed.positions.tensor, packed.step, taps)
        else:
            hidden, outputs = self._executor.run(read, packed.step, taps)
            if read is None and relay is not None and relay.reads_embedding:  # an executor embeds by itself
                read = self._executor.embed(packed.step)
        if tap is not None:
            tapped = project(outputs[tap], tap_dims(needs))
        if relay is not None:
            fused = relay.add(read, outputs, fused)
        return Activations(hidden, tapped, fused)

    @torch.inference_mode()
    def head_part(self, rows: torch.Tensor) -> torch.Tensor:
        """Return normalized rows ``[n, hidden]`` times this rank's part of the head, ``[n, width]``."""
        if self._executor is not None:
            return self._executor.head_part(rows)
        part: torch.Tensor = self._shard.head_module.linear(rows)  # type: ignore[operator]
        return part

    def forget_graphs(self) -> None:
        """Drop recorded steps: their exchanges belong to a lost connection. ``warm_up`` records new ones."""
        if self._executor is not None:
            self._executor.forget_graphs()

    def new_rows(self, n: int) -> torch.Tensor:
        """Return uninitialised hidden states ``[1, n, hidden]``."""
        return torch.empty(1, n, self._spec.hidden_size, dtype=self._shard.dtype, device=self._shard.device)

    def computing(self) -> Computing | None:
        """The unfinished work of a GPU on the last ``forward``; None on a CPU."""
        return self._running.computing

    @torch.inference_mode()
    def verify(self, activations: Activations) -> list[WorkResult]:
        """See ``StageLike.verify``; only on the last stage."""
        running = self._running
        answer, running.answer = running.answer, None  # frees the logits before the next forward pass
        assert answer is not None, "verify follows forward, on the last stage"
        assert running.packed is not None, "an answer is made with its rows"
        results = answer.results(activations)
        if self._drafts is not None:
            sequences = [self._sequences[work.seq] for work in running.works]
            results = self._drafts.attach(running.works, running.packed.spans, sequences, results, activations)
        return results

    @torch.inference_mode()
    def attention(self, results: Sequence[WorkResult]) -> AttentionRows:
        """See ``StageLike.attention``."""
        captured = self.captured()
        return {} if captured is None else captured.rows(results)

    def captured(self) -> CapturedStep | None:
        """See ``StageLike.captured``."""
        packed, works = self._running.packed, self._running.works
        if packed is None or not packed.step.captured:
            return None
        kept = [
            CapturedWork(work, span, self._sequences[work.seq].start.needs.heads, self._tables[work.seq])
            for work, span in zip(works, packed.spans, strict=True)
        ]
        return CapturedStep(packed.step, self._shard.range, kept)
