"""A step's answer by the kernels of an executor: drawn tokens, best ids and log-probabilities come down in one piece.

Rows that a walk could pass are answered together, and their logits stay for those whose tokens torch draws (see
``engine.verify.planned.is_plannable``). Rows of prompts that are read back are answered a few at a time, and nothing
stays of their logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from engine.cuda.plan.answer import DRAWN, MOST_BEST, AnswerPlan, Draw, Told, make_answer, width_of
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
from engine.step import Work, WorkResult
from engine.upload import Upload, Uploaded
from engine.verify.batch import Verification
from engine.verify.planned import PlannedDraws, is_plannable
from engine.verify.walk import Walk, WalkItem

if TYPE_CHECKING:  # needs Triton
    from engine.cuda.answers import Answers

PROMPT_ROWS = 128  # of prompts, answered at once: 66 MB of logits for 128,256 ids


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows that are answered at once."""

    first: int  # its number among all
    plan: AnswerPlan
    ints: Uploaded


class _Rows:
    """Rows that go through the head: those that a walk could pass, and behind them those of prompts."""

    def __init__(self, works: Sequence[Work], spans: Sequence[Span], needed: Sequence[LogitRows]) -> None:
        self.of_walks: list[int] = []  # rows of the step
        self.of_prompts: list[int] = []
        self.roots: list[int] = []  # of every work the number of its root, or of its last token
        in_prompts: list[int | None] = []
        for work, span, its in zip(works, spans, needed, strict=True):
            self.roots.append(len(self.of_walks))
            reads_prompt = work.tree is None and (its.top_k or work.logprobs_of)
            in_prompts.append(len(self.of_prompts) if reads_prompt else None)
            if reads_prompt:
                self.of_prompts += [span.first + row for row in its.rows]
            if work.tree is not None:
                self.of_walks += [span.first + row for row in its.rows]
            elif work.draw:
                self.of_walks.append(span.first + span.n - 1)
        n = len(self.of_walks)
        self.firsts = [root if at is None else n + at for root, at in zip(self.roots, in_prompts, strict=True)]


class PlannedAnswer:
    """One step's answer in the making; as ``StepAnswer``.

    Args:
        works: of the step.
        spans: rows of every work.
        sequences: of every work; they remember its text.
        upload: takes what has to be on the device, to be sent before ``results``.
        answers: of the stage's executor.
        grammars: of the model; None: no sequence may have one.
    """

    def __init__(
        self,
        works: Sequence[Work],
        spans: Sequence[Span],
        sequences: Sequence[StageSequence],
        upload: Upload,
        answers: Answers,
        grammars: Grammars | None = None,
    ) -> None:
        self._works, self._vocab, self._answers = works, answers.vocab, answers
        needs = [sequence.start.needs for sequence in sequences]
        needed = [logit_rows(work, need) for work, need in zip(works, needs, strict=True)]
        rows = _Rows(works, spans, needed)
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

    def _plan(self, rows: _Rows, upload: Upload) -> Iterator[_Piece]:
        read = self._read_back.rows
        drawn = self._draws.rows if read else set()
        asked = {row: DRAWN if row in drawn else 0 for row in read}  # 0: any token, for its best ids alone are wanted
        asked |= dict.fromkeys(self._draws.with_logprobs, DRAWN) | self._prompt_logprobs.tokens
        n_best = max(1, self._draws.n_best, self._read_back.n_best, self._prompt_logprobs.n_best)
        width, n_walks = width_of(n_best, self._vocab), len(rows.of_walks)
        # Torch draws from the logits of all walks; without it rows are answered in pieces, so that memory is bounded.
        n = max(1, n_walks) if self._others.any else self._answers.buckets[-1]
        walks = [(at, rows.of_walks[at : at + n]) for at in range(0, n_walks, n)]
        n, its = PROMPT_ROWS, rows.of_prompts
        prompts = [(n_walks + at, its[at : at + n]) for at in range(0, len(its), n)]
        for first, its in [*prompts, *walks]:  # the last logits are those that stay
            some = {row - first: asked[row] for row in range(first, first + len(its)) if row in asked}
            draws = self._draws.draws if len(its) == n_walks else _drawn(self._draws.draws, first, len(its))
            plan = make_answer(its, draws if first < n_walks else [], some, width, self._answers.buckets)
            yield _Piece(first, plan, upload.add(plan.ints, np.int32))

    def results(self, activations: Activations) -> list[WorkResult]:
        """The answer to every work, in order."""
        hidden, logits, told = activations.hidden[0], None, list[Tensor]()
        for piece in self._pieces:
            its, logits = self._answers.answer(hidden, piece.plan, piece.ints.tensor, self._mask(piece))
            told.append(its.clone() if len(self._pieces) > 1 else its)  # the next piece may take the memory
        begun = [] if logits is None else self._others.begin(logits)
        # Here the host waits; later only for levels of the rejection rule, and for states that walks choose from.
        arrays = iter(fetch([*told, *begun, *self._states.begin(activations.tapped)]))
        table = Told(self._joined([next(arrays) for _ in self._pieces]))
        walks = self._all_walks(iter(self._draws.finish(table)), iter(self._others.finish(arrays)))
        tops = self._read_back.finish(self._read_back.chosen(table))
        of_prompts = self._prompt_logprobs.finish(self._prompt_logprobs.chosen(table))
        return assemble(self._works, walks, tops, of_prompts, self._states.finish(arrays, walks))

    def _mask(self, piece: _Piece) -> Tensor | None:
        if not (self._draws.any_grammar and piece.plan.kind.draws):
            return None
        upload = Upload(self._answers.device)
        bits = upload.add(self._draws.masks(piece.first, piece.plan.layout.n_rows, self._vocab), np.int32)
        upload.send()
        return bits.tensor

    def _joined(self, tables: Sequence[Ints]) -> Ints:
        """What was told of all rows, in the order of their numbers; of some pieces more is told than of others."""
        if len(tables) == 1:
            return tables[0]
        joined = np.zeros((sum(map(len, tables)), max((table.shape[1] for table in tables), default=1)), np.int32)
        for piece, table in zip(self._pieces, tables, strict=True):
            joined[piece.first : piece.first + len(table), : table.shape[1]] = table
        return joined

    def _all_walks(self, planned: Iterator[Walk], others: Iterator[Walk]) -> list[Walk]:
        """Of every work, in order."""
        drawn = iter([next(planned if is_planned else others) for is_planned in self._is_planned])
        return [next(drawn) if work.draw else Walk() for work in self._works]


def can_plan(sequences: Sequence[StageSequence]) -> bool:
    """Whether no sequence asks for more ids than kernels tell; torch answers a step in which one does."""
    starts = [sequence.start for sequence in sequences]
    asked = [
        (
            one.needs.node_top_k,
            one.needs.probe_top_k,
            one.needs.prompt_top_k,
            one.params.logprobs,
            one.params.prompt_logprobs,
        )
        for one in starts
    ]
    return all((n or 0) <= MOST_BEST for its in asked for n in its)


def answer_of(
    works: Sequence[Work],
    spans: Sequence[Span],
    sequences: Sequence[StageSequence],
    upload: Upload,
    shard: ModelShard,
    answers: Answers | None,
    grammars: Grammars | None,
) -> StepAnswer | PlannedAnswer:
    """How a step is answered: by the kernels of an executor, where there is one and they can, or by torch."""
    if answers is not None and can_plan(sequences):
        return PlannedAnswer(works, spans, sequences, upload, answers, grammars)
    head = shard.logits if answers is None else answers.logits
    return StepAnswer(works, spans, sequences, shard.spec.vocab_size, upload, head, grammars)


def _drawn(draws: Sequence[Draw], first: int, n: int) -> list[Draw]:
    """What is drawn at some rows, by their places among them."""
    inside = [draw._replace(rows=draw.rows[(draw.rows >= first) & (draw.rows < first + n)] - first) for draw in draws]
    return [draw for draw in inside if len(draw.rows)]
