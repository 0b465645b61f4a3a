"""A pipeline stage: a shard of layers, its part of the KV cache, and on the last stage the verification.

A stage decides nothing: block numbers, trees and accepted paths come with the step. It knows sequences by number only,
and frees them when a step says so. One thread runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.attention.packing import Attends
from engine.drafter.part import NO_DRAFTER, DrafterPart
from engine.grammar.compiler import Grammars
from engine.kv.arena import BlockTable, KVArena
from engine.model.shard import ModelShard
from engine.stage.answer import StageSequence, StepAnswer
from engine.stage.artefacts import AttentionRows, CapturedStep, CapturedWork, project
from engine.stage.base import Activations, Computing
from engine.stage.device_work import DeviceWork, begin
from engine.stage.drafts import StageDrafts
from engine.stage.packing import Packed, RowMoves, pack, plan_moves
from engine.step import Step, Work, WorkResult
from engine.upload import Upload


@dataclass(slots=True)
class _Running:
    """The step between ``forward`` and ``attention``."""

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
        reference: use the slow oracle attention.
        drafter: this stage's part of a trained drafter.
        grammars: compiles those of requests, on the last stage.
    """

    def __init__(
        self,
        shard: ModelShard,
        n_blocks: int,
        block_size: int,
        reference: bool = False,
        drafter: DrafterPart = NO_DRAFTER,
        grammars: Grammars | None = None,
    ) -> None:
        self._shard = shard
        self._grammars = grammars if shard.range.is_last else None
        self._spec = shard.spec
        self._attends: Attends = "one by one" if shard.device.type == "cpu" else "together"
        if reference:
            self._attends = "reference"
        self._arena = KVArena(
            len(shard.range),
            n_blocks,
            block_size,
            self._spec.n_kv_heads,
            self._spec.head_dim,
            shard.dtype,
            shard.device,
        )
        self._tables: dict[int, BlockTable] = {}
        self._sequences: dict[int, StageSequence] = {}
        self._running = _Running()
        self._admitted: Step | None = None  # the last
        self._relay = drafter.relay
        self._drafts = None if drafter.runtime is None else StageDrafts(drafter.runtime, shard.norm)

    @property
    def n_sequences(self) -> int:
        """Sequences the stage holds state of."""
        return len(self._sequences)

    def reset(self) -> None:
        """Forget every sequence; the cache's contents become meaningless."""
        self._tables.clear()
        self._sequences.clear()
        self._running = _Running()
        self._admitted = None
        if self._drafts is not None:
            self._drafts.runtime.reset()

    @torch.inference_mode()
    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        """Run this stage's layers over a step; ``incoming`` is None on the first stage."""
        self.admit(step)
        computing = begin(self._shard.device)
        works = step.work
        upload = Upload(self._shard.device)
        moves = plan_moves(step, self._tables, self._arena.block_size, upload)
        windows, groups = self._shard.windows, self._spec.groups
        packed = pack(works, self._tables, self._arena, upload, groups, windows, self._attends)
        packed.step.capture_heads = self._local_heads(works)
        packed.step.capture_index = {layer: upload.add(heads) for layer, heads in packed.step.capture_heads.items()}
        answer = None
        if self._shard.range.is_last:
            sequences = [self._sequences[work.seq] for work in works]
            answer = StepAnswer(works, packed.spans, sequences, self._spec.vocab_size, upload, self._grammars)
        upload.send()
        self._copy_rows(moves)
        if incoming is None:
            incoming = Activations(self._shard.embed(packed.tokens.tensor))
        outgoing = self._run(works, packed, incoming)
        if computing is not None:
            computing.end()
        self._running = _Running(packed, works, answer, computing)
        return outgoing

    def _copy_rows(self, moves: RowMoves) -> None:
        """Copied prefixes begin in the drafter's cache too; what a tree left there is written anew."""
        for move in filter(None, (moves.copies, moves.compaction)):
            self._arena.copy(move.source.tensor, move.target.tensor, move.is_apart)
        if self._drafts is not None and moves.copies is not None:
            copies = moves.copies
            self._drafts.runtime.copy(copies.source.tensor, copies.target.tensor, copies.is_apart)

    def _run(self, works: Sequence[Work], packed: Packed, incoming: Activations) -> Activations:
        """The layers, and what they are tapped for."""
        tap = self._local_tap(works)
        relay = self._relay if any(self._sequences[work.seq].start.needs.drafter for work in works) else None
        taps = {*([] if tap is None else [tap]), *([] if relay is None else relay.taps)}
        hidden, outputs = self._shard.run(incoming.hidden, packed.positions.tensor, packed.step, taps)
        tapped = incoming.tapped if tap is None else project(outputs[tap], self._tap_dims(works))
        fused = incoming.fused if relay is None else relay.add(incoming.hidden, outputs, incoming.fused)
        return Activations(hidden, tapped, fused)

    def computing(self) -> Computing | None:
        """What a GPU still does of the last ``forward``; None on a CPU."""
        return self._running.computing

    @torch.inference_mode()
    def verify(self, activations: Activations) -> list[WorkResult]:
        """Last stage: logits where they are needed, one walk over all trees, read-backs."""
        running = self._running
        answer, running.answer = running.answer, None  # logits are not for keeping through the next forward
        assert answer is not None, "verify follows forward, on the last stage"
        assert running.packed is not None, "an answer is made with its rows"
        results = answer.results(activations, self._shard.logits)
        if self._drafts is None:
            return results
        sequences = [self._sequences[work.seq] for work in running.works]
        return self._drafts.attach(running.works, running.packed.spans, sequences, results, activations)

    @torch.inference_mode()
    def attention(self, results: Sequence[WorkResult]) -> AttentionRows:
        """Attention rows of the wanted heads on this stage, fp32 ``[n_positions]`` each, once the results are known.

        Keyed by (sequence, place in its needs' heads); empty for sequences that need none.
        """
        captured = self.captured()
        return {} if captured is None else captured.rows(results)

    def captured(self) -> CapturedStep | None:
        """What attention rows of the step are made from, for a stage that hears the results only later.

        Returns None when no sequence of the step needs a row of this stage.
        """
        packed, works = self._running.packed, self._running.works
        if packed is None or not packed.step.captured:
            return None
        kept = [
            CapturedWork(work, span, self._sequences[work.seq].start.needs.heads, self._tables[work.seq])
            for work, span in zip(works, packed.spans, strict=True)
        ]
        return CapturedStep(packed.step, self._shard.range, kept)

    def admit(self, step: Step) -> None:
        """Forget the sequences that ended, move others, learn of new ones and of new blocks; harmless a second time.

        A step without work asks for no more. A step that fails must still be admitted: later chunks of its sequences
        may be on their way, in one step with other sequences, and what was moved may be the beginning of another's
        text; none of them must suffer.
        """
        if step is self._admitted:
            return
        for seq in step.ends:
            self._tables.pop(seq, None)
            self._sequences.pop(seq, None)
            if self._drafts is not None:
                self._drafts.runtime.end(seq)
        self._move(step.work)  # where a device fails here, nothing below was done, and all can be done again
        self._admitted = step
        for start in step.starts:
            table = self._tables[start.seq] = BlockTable(self._arena.block_size)
            self._sequences[start.seq] = StageSequence(start, [*start.text])
            if self._grammars is not None and start.params.grammar is not None:
                self._grammars.prepare(start.params.grammar)  # while the prompt is read
            if self._drafts is not None and start.needs.drafter:
                self._drafts.runtime.start(start.seq, table, start.n_copied)
        for work in step.work:
            if work.seq in self._tables and not work.moved:
                self._tables[work.seq].extend(work.new_blocks)

    def _move(self, works: Sequence[Work]) -> None:
        """Copy the rows of sequences that have other blocks now."""
        for work in works:
            if work.moved and work.seq in self._tables:
                table = self._tables[work.seq]
                runs = table.runs_to(work.new_blocks)
                self._arena.move_runs(runs)
                if self._drafts is not None:
                    self._drafts.runtime.move_runs(runs)
                table.replace(work.new_blocks)

    def _local_tap(self, works: Sequence[Work]) -> int | None:
        """Local layer whose output is wanted by any sequence of the step (one layer per deployment)."""
        for work in works:
            layer = self._sequences[work.seq].start.needs.hidden_layer
            if layer is not None and self._shard.range.first <= layer < self._shard.range.last:
                return layer - self._shard.range.first
        return None

    def _tap_dims(self, works: Sequence[Work]) -> int:
        """Dimensions in which the tapped states travel; 0, all of them, where sequences of one step do not agree."""
        wanted = [self._sequences[work.seq].start.needs for work in works]
        dims = {needs.hidden_dims for needs in wanted if needs.hidden_layer is not None}
        return dims.pop() if len(dims) == 1 else 0

    def _local_heads(self, works: Sequence[Work]) -> dict[int, list[int]]:
        """Heads that any sequence of the step needs a row of, by local layer."""
        wanted: dict[int, set[int]] = {}
        for work in works:
            for layer, head in self._sequences[work.seq].start.needs.heads:
                if self._shard.range.first <= layer < self._shard.range.last:
                    wanted.setdefault(layer - self._shard.range.first, set()).add(head)
        return {layer: sorted(heads) for layer, heads in wanted.items()}
