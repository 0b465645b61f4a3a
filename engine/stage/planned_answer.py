"""A step's answer by the kernels of an executor: one copy brings drawn tokens, best ids and log-probabilities.

Kernels answer all rows that a walk could pass together. Their logits are kept where torch draws some of the tokens (see
``engine.verify.planned.is_plannable``). Rows of prompts that are read back are answered in small pieces, and their
logits are overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from engine.cuda.plan.answer import MOST_BEST, AnswerPlan, AnswerTable, make_answer, width_of
from engine.cuda.plan.answer_layout import NOTHING, READ
from engine.cuda.plan.items import Ints
from engine.device import fetch
from engine.grammar.compiler import Grammars
from engine.model.shard import ModelShard
from engine.stage.answer import StageSequence, StepAnswer, assemble
from engine.stage.artefacts import StatesReadBack
from engine.stage.base import Activations
from engine.stage.logit_readback import LogitRows, ReadBack, logit_rows
from engine.stage.packing import Span
from engine.stage.prompt_logprobs import PromptLogprobs
from engine.step import SequenceStart, Work, WorkResult
from engine.upload import Upload, Uploaded
from engine.verify.batch import Verification
from engine.verify.planned import PlannedDraws, is_plannable
from engine.verify.walk import Walk, WalkItem

if TYPE_CHECKING:  # needs Triton
    from engine.cuda.answers import LogitsReader

PROMPT_ROWS = 128  # rows of prompts in a piece: 66 MB of logits for 128,256 ids


@dataclass(frozen=True, slots=True)
class _AnsweredRows:
    """Rows that are answered together."""

    first: int  # number of the first among all rows of logits
    plan: AnswerPlan
    ints: Uploaded


class _HeadRows:
    """Rows that go through the head, as the logits number them: first those of walks, then those of prompts.

    ``firsts`` are the numbers of the first row of every work that is read back.
    """

    def __init__(self, works: Sequence[Work], spans: Sequence[Span], needed: Sequence[LogitRows]) -> None:
        self.of_walks: list[int] = []  # numbers in the step
        self.of_prompts: list[int] = []
        self.roots: list[int] = []  # of every work: its root, or the last token of its chunk
        in_prompts: list[int | None] = []
        for work, span, logits in zip(works, spans, needed, strict=True):
            self.roots.append(len(self.of_walks))
            reads_prompt = work.tree is None and (logits.top_k or work.logprobs_of)
            in_prompts.append(len(self.of_prompts) if reads_prompt else None)
            if reads_prompt:
                self.of_prompts += [span.first + row for row in logits.rows]
            if work.tree is not None:
                is_all = len(logits.rows) == span.n
                span_rows = range(span.first, span.first + span.n)
                self.of_walks += span_rows if is_all else [span_rows[row] for row in logits.rows]
            elif work.draw:
                self.of_walks.append(span.first + span.n - 1)
        n = len(self.of_walks)
        self.firsts = [root if at is None else n + at for root, at in zip(self.roots, in_prompts, strict=True)]


class PlannedAnswer:
    """Plans one step's answer, then returns it; replaces ``StepAnswer``.

    Args:
        works: of the step.
        spans: rows of every work.
        sequences: of every work; they remember its text.
        upload: carries the plan to the device; send it before ``results``.
        answers: of the stage's executor.
        grammars: of the model; None: no sequence has one.
    """

    def __init__(
        self,
        works: Sequence[Work],
        spans: Sequence[Span],
        sequences: Sequence[StageSequence],
        upload: Upload,
        answers: LogitsReader,
        grammars: Grammars | None = None,
    ) -> None:
        self._works, self._vocab, self._answers = works, answers.vocab, answers
        needs = [sequence.start.needs for sequence in sequences]
        needed = [logit_rows(work, need) for work, need in zip(works, needs, strict=True)]
        rows = _HeadRows(works, spans, needed)
        items: list[WalkItem] = []
        for work, root, sequence in zip(works, rows.roots, sequences, strict=True):
            sequence.remember(work, grammars)
            if work.draw:
                items.append(sequence.walk_item(work, root))
        self._is_planned = [is_plannable(item) for item in items]
        both = list(zip(items, self._is_planned, strict=True))
        self._draws = PlannedDraws([item for item, is_planned in both if is_planned])
        self._others = Verification([item for item, is_planned in both if not is_planned], self._vocab, upload)
        self._read_back = ReadBack(works, needs, needed, rows.firsts)
        ks = [sequence.start.params.prompt_logprobs or 0 for sequence in sequences]
        self._prompt_logprobs = PromptLogprobs(works, ks, rows.firsts, self._vocab)
        self._states = StatesReadBack(works, needs, spans)
        self._pieces = list(self._plan(rows, upload))

    def _plan(self, rows: _HeadRows, upload: Upload) -> Iterator[_AnsweredRows]:
        n_walks, draws = len(rows.of_walks), self._draws.draws
        asked = np.full(n_walks + len(rows.of_prompts), NOTHING, np.int32)
        for places in self._read_back.places:
            asked[places] = READ
        if tokens := self._prompt_logprobs.tokens:
            asked[list(tokens)] = list(tokens.values())
        n_best = max(1, self._draws.n_best, self._read_back.n_best, self._prompt_logprobs.n_best)
        width = width_of(n_best, self._vocab)
        # Torch needs the logits of all walks at once; otherwise pieces bound the memory.
        n = max(1, n_walks) if self._others.any else self._answers.buckets[-1]
        walks = [(at, rows.of_walks[at : at + n]) for at in range(0, n_walks, n)]
        starts = range(0, len(rows.of_prompts), PROMPT_ROWS)
        prompts = [(n_walks + at, rows.of_prompts[at : at + PROMPT_ROWS]) for at in starts]
        for first, some in [*prompts, *walks]:  # walks come last: their logits are kept
            plan = make_answer(some, first, draws, asked[first : first + len(some)], width, self._answers.buckets)
            yield _AnsweredRows(first, plan, upload.add(plan.ints, np.int32))

    def results(self, activations: Activations) -> list[WorkResult]:
        """Return the answer to every work, in order."""
        hidden, logits, tables = activations.hidden[0], None, list[Tensor]()
        for piece in self._pieces:
            table, logits = self._answers.answer(hidden, piece.plan, piece.ints.tensor, self._mask(piece))
            tables.append(table.clone() if len(self._pieces) > 1 else table)  # the next piece may reuse the memory
        begun = [] if logits is None else self._others.begin(logits)
        # The host waits here. Later it waits only for levels of the rejection rule, and for states chosen by walks.
        arrays = iter(fetch([*tables, *begun, *self._states.begin(activations.tapped)]))
        answer = AnswerTable(self._join([next(arrays) for _ in self._pieces]))
        walks = self._all_walks(iter(self._draws.finish(answer)), iter(self._others.finish(arrays)))
        tops = self._read_back.finish(self._read_back.chosen(answer))
        of_prompts = self._prompt_logprobs.finish(self._prompt_logprobs.chosen(answer))
        return assemble(self._works, walks, tops, of_prompts, self._states.finish(arrays, walks))

    def _mask(self, piece: _AnsweredRows) -> Tensor | None:
        if not (self._draws.any_grammar and piece.plan.kind.draws):
            return None
        upload = Upload(self._answers.device)
        bits = upload.add(self._draws.masks(piece.first, piece.plan.layout.n_rows, self._vocab), np.int32)
        upload.send()
        return bits.tensor

    def _join(self, tables: Sequence[Ints]) -> Ints:
        """Return one table of all rows in the order of their numbers; some pieces have more columns than others."""
        if len(tables) == 1:
            return tables[0]
        joined = np.zeros((sum(map(len, tables)), max((table.shape[1] for table in tables), default=1)), np.int32)
        for piece, table in zip(self._pieces, tables, strict=True):
            joined[piece.first : piece.first + len(table), : table.shape[1]] = table
        return joined

    def _all_walks(self, planned: Iterator[Walk], others: Iterator[Walk]) -> list[Walk]:
        """Return the walk of every work, in order; an empty one if it draws no token."""
        drawn = iter([next(planned if is_planned else others) for is_planned in self._is_planned])
        return [next(drawn) if work.draw else Walk() for work in self._works]


def can_plan(sequences: Sequence[StageSequence]) -> bool:
    """Whether kernels return as many best ids as the sequences ask for; otherwise torch answers the step."""
    return all(_most_ids(sequence.start) <= MOST_BEST for sequence in sequences)


def _most_ids(start: SequenceStart) -> int:
    needs, params = start.needs, start.params
    top_k = max(needs.node_top_k, needs.probe_top_k, needs.prompt_top_k)
    return max(top_k, params.logprobs or 0, params.prompt_logprobs or 0)


def answer_of(
    works: Sequence[Work],
    spans: Sequence[Span],
    sequences: Sequence[StageSequence],
    upload: Upload,
    shard: ModelShard,
    answers: LogitsReader | None,
    grammars: Grammars | None,
) -> StepAnswer | PlannedAnswer:
    """Plan a step's answer: by the kernels of an executor if there is one and they can answer it, else by torch."""
    if answers is not None and can_plan(sequences):
        return PlannedAnswer(works, spans, sequences, upload, answers, grammars)
    head = shard.logits if answers is None else answers.logits
    return StepAnswer(works, spans, sequences, shard.spec.vocab_size, upload, head, grammars)
