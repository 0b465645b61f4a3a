"""A pipeline stage: a shard of layers, its part of the KV cache, and on the last stage the verification.

A stage decides nothing: block numbers, trees and accepted paths come with the step. It knows sequences by number only,
and frees them when a step says so. One thread runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.kv.arena import BlockTable, KVArena
from engine.model.shard import ModelShard
from engine.sampling.processors import History
from engine.stage.artefacts import AttentionRows, CapturedStep, CapturedWork, project
from engine.stage.base import Activations, Computing
from engine.stage.device_work import DeviceWork, begin
from engine.stage.logit_readback import LogitRows, logit_rows, node_top, prompt_top
from engine.stage.packing import Attends, Packed, Span, pack, plan_moves
from engine.step import SequenceStart, Step, Work, WorkResult
from engine.tree import EMPTY_TREE
from engine.upload import Upload, Uploaded
from engine.verify.batch import Walk, WalkItem, verify


@dataclass(slots=True)
class _Sequence:
    """What a stage remembers of a sequence."""

    start: SequenceStart
    text: list[int]  # copied tokens and chunks so far, kept only until ``history`` is made of them
    history: History | None = None  # last stage only, and only if penalties or a minimum length need it


@dataclass(slots=True)
class _HeadRows:
    """Which rows of the step need logits."""

    needed: list[LogitRows]  # [n_works]
    firsts: list[int]  # row of the logits at which each work's begin, [n_works]
    picked: Uploaded | None  # int64 rows of the step, None for all


@dataclass(slots=True)
class _Running:
    """The step between ``forward`` and ``attention``."""

    packed: Packed | None = None
    works: Sequence[Work] = field(default_factory=list)
    head: _HeadRows | None = None  # last stage only
    computing: DeviceWork | None = None


class Stage:
    """A range of layers and their part of the KV cache. Implements ``engine.stage.base.StageLike``.

    Args:
        shard: the layers.
        n_blocks: KV blocks, the same number on every stage of a pipeline.
        block_size: tokens per block.
        reference: use the slow oracle attention.
    """

    def __init__(self, shard: ModelShard, n_blocks: int, block_size: int, reference: bool = False) -> None:
        self._shard = shard
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
        self._sequences: dict[int, _Sequence] = {}
        self._running = _Running()
        self._admitted: Step | None = None  # the last

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
        head = self._head_rows(works, packed.spans, upload) if self._shard.range.is_last else None
        upload.send()
        for move in moves:
            self._arena.copy(move.source.tensor, move.target.tensor, move.is_apart)
        if incoming is None:
            incoming = Activations(self._shard.embed(packed.tokens.tensor))
        tap = self._local_tap(works)
        hidden, tapped = self._shard.run(incoming.hidden, packed.positions.tensor, packed.step, tap)
        if tapped is not None:
            tapped = project(tapped, self._tap_dims(works))
        if computing is not None:
            computing.end()
        self._running = _Running(packed, works, head, computing)
        return Activations(hidden, tapped if tapped is not None else incoming.tapped)

    def computing(self) -> Computing | None:
        """What a GPU still does of the last ``forward``; None on a CPU."""
        return self._running.computing

    @torch.inference_mode()
    def verify(self, activations: Activations) -> list[WorkResult]:
        """Last stage: logits where they are needed, one walk over all trees, read-backs."""
        packed, works, head = self._running.packed, self._running.works, self._running.head
        assert packed is not None, "verify follows forward"
        assert head is not None, "only the last stage verifies"
        needed, firsts, hidden = head.needed, head.firsts, activations.hidden[0]
        if head.picked is not None:
            hidden = hidden.index_select(0, head.picked.tensor)
        logits = self._shard.logits(hidden)
        for work in works:
            self._remember(work)
        items = [self._walk_item(w, n, f) for w, n, f in zip(works, needed, firsts, strict=True) if w.draw]
        walks = iter(verify(logits, items))
        return [
            self._result(
                work,
                span,
                rows,
                logits[first : first + len(rows.rows)],
                next(walks) if work.draw else None,
                activations,
            )
            for work, span, rows, first in zip(works, packed.spans, needed, firsts, strict=True)
        ]

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
        self._move(step.work)  # may lack a device's memory; then nothing below was done, and all can be done again
        self._admitted = step
        for start in step.starts:
            self._tables[start.seq] = BlockTable(self._arena.block_size)
            self._sequences[start.seq] = _Sequence(start, [*start.text])
        for work in step.work:
            if work.seq in self._tables and not work.moved:
                self._tables[work.seq].extend(work.new_blocks)

    def _move(self, works: Sequence[Work]) -> None:
        """Copy the rows of sequences that have other blocks now."""
        for work in works:
            if work.moved and work.seq in self._tables:
                table = self._tables[work.seq]
                self._arena.move_runs(table.runs_to(work.new_blocks))
                table.replace(work.new_blocks)

    def _head_rows(self, works: Sequence[Work], spans: Sequence[Span], upload: Upload) -> _HeadRows:
        """The rows that go through the head; the device hears of them with the rest of the step."""
        needed = [logit_rows(work, self._sequences[work.seq].start.needs) for work in works]
        picked: list[int] = []
        firsts: list[int] = []
        for span, rows in zip(spans, needed, strict=True):
            firsts.append(len(picked))
            picked.extend(span.first + row for row in rows.rows)
        is_all = len(picked) == sum(span.n for span in spans)
        return _HeadRows(needed, firsts, None if is_all else upload.add(picked))

    def _remember(self, work: Work) -> None:
        """Keep the text that penalties and a minimum length look at; the walk itself adds the tokens it commits."""
        sequence = self._sequences[work.seq]
        params = sequence.start.params
        if sequence.history is not None or not (params.has_penalties or params.min_tokens):
            return
        sequence.text += work.tokens
        if work.draw:
            n = sequence.start.n_prompt
            sequence.history = History(sequence.text[:n], sequence.text[n:])
            sequence.text = []

    def _walk_item(self, work: Work, rows: LogitRows, first: int) -> WalkItem:
        sequence = self._sequences[work.seq]
        if work.tree is None:
            first, context, tree = first + len(rows.rows) - 1, work.n_cached + len(work.tokens), EMPTY_TREE
        else:
            context, tree = work.n_cached + 1, work.tree
        return WalkItem(tree, first, sequence.start.params, sequence.history, context, work.max_new)

    def _result(
        self, work: Work, span: Span, rows: LogitRows, logits: Tensor, walk: Walk | None, activations: Activations
    ) -> WorkResult:
        """The answer to one work; ``logits`` ``[len(rows.rows), vocab]`` are its own."""
        needs = self._sequences[work.seq].start.needs
        accepted = walk.accepted if walk is not None else []
        hidden = None
        if needs.hidden_layer is not None and activations.tapped is not None:
            kept = range(span.n) if work.tree is None else [0, *(node + 1 for node in accepted)]
            states = activations.tapped[0, [span.first + row for row in kept]].float()
            hidden = project(states, needs.hidden_dims).cpu().numpy()
        prompt_ids, prompt_logprobs = prompt_top(logits, needs) if work.tree is None else (None, None)
        return WorkResult(
            work.seq,
            walk.tokens if walk is not None else [],
            accepted,
            walk.logprobs if walk is not None else None,
            node_top(logits, rows, work, needs),
            prompt_ids,
            hidden,
            prompt_top_logprobs=prompt_logprobs,
        )

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
