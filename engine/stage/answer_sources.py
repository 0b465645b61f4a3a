"""Where a step's answer comes from: torch computes it from all logits, or the kernels of an executor do.

Both are planned with the step. ``begin`` launches on the device and returns the tensors to fetch. ``finish`` takes the
fetched arrays and returns walks, best ids of every work and log-probabilities of its prompt; it waits for the device
only for levels of the rejection rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from engine.cuda.plan.answer import AnswerPlan, AnswerTable, make_answer, width_of
from engine.cuda.plan.answer_layout import NOTHING, READ
from engine.cuda.plan.items import Ints
from engine.device import Array
from engine.events import TokenLogprob
from engine.stage.logit_readback import PromptLogprobs, ReadBack, TopRows
from engine.stage.logit_rows import HeadRows
from engine.upload import Upload, Uploaded
from engine.verify.batch import Verification
from engine.verify.walk import Walk

if TYPE_CHECKING:  # needs Triton
    from engine.cuda.answers import LogitsReader

PROMPT_ROWS = 128  # rows of prompts in a piece: 66 MB of logits for 128,256 ids

Readings = tuple[list[Walk], list[TopRows], list[list[TokenLogprob] | None]]


@dataclass(frozen=True, slots=True)
class LogitUses:
    """Everything that reads a step's logits."""

    verification: Verification
    read_back: ReadBack
    prompt_logprobs: PromptLogprobs


class TorchAnswerSource:
    """Makes the logits of all rows, then reads them with torch.

    Args:
        rows: that need logits, in one order with the step's.
        n_rows: rows of the step.
        uses: of the logits.
        upload: carries row numbers to the device; send it before ``begin``.
        head: makes logits ``[n, vocab]`` of hidden states ``[n, hidden]``.
    """

    def __init__(
        self, rows: HeadRows, n_rows: int, uses: LogitUses, upload: Upload, head: Callable[[Tensor], Tensor]
    ) -> None:
        self._uses, self._head = uses, head
        self._picked = None if len(rows.walks) == n_rows else upload.add(rows.walks)

    def begin(self, hidden: Tensor) -> list[Tensor]:
        logits = self._head(hidden if self._picked is None else hidden.index_select(0, self._picked.tensor))
        uses = self._uses
        return [
            *uses.verification.begin(logits),
            *uses.read_back.begin(logits),
            *uses.prompt_logprobs.begin(logits),
        ]

    def finish(self, arrays: Iterator[Array]) -> Readings:
        uses = self._uses
        return uses.verification.finish(arrays), uses.read_back.finish(arrays), uses.prompt_logprobs.finish(arrays)


@dataclass(frozen=True, slots=True)
class _AnsweredRows:
    """Rows that are answered together."""

    first: int  # number of the first among all rows of logits
    plan: AnswerPlan
    ints: Uploaded


class KernelAnswerSource:
    """Lets kernels draw tokens and read best ids and log-probabilities; torch draws the rest.

    Kernels answer all rows that a walk could visit together. Their logits are kept where torch draws some of the
    tokens. Rows of prompts that are read back are answered in small pieces, and their logits are overwritten.

    Args:
        rows: that need logits, prompts apart.
        uses: of the logits.
        upload: carries the plan to the device; send it before ``begin``.
        kernels: of the stage's executor.
    """

    def __init__(self, rows: HeadRows, uses: LogitUses, upload: Upload, kernels: LogitsReader) -> None:
        self._uses, self._kernels = uses, kernels
        self._draws = uses.verification.kernel_draws
        self._pieces = list(self._plan(rows, upload))

    def _plan(self, rows: HeadRows, upload: Upload) -> Iterator[_AnsweredRows]:
        uses, kernels, n_walks = self._uses, self._kernels, len(rows.walks)
        asked = np.full(n_walks + len(rows.prompts), NOTHING, np.int32)
        for places in uses.read_back.places:
            asked[places] = READ
        if tokens := uses.prompt_logprobs.tokens:
            asked[list(tokens)] = list(tokens.values())
        width = width_of(max(1, self._draws.n_best, uses.read_back.n_best, uses.prompt_logprobs.n_best), kernels.vocab)
        # Torch needs the logits of all walks at once; otherwise pieces bound the memory.
        n = max(1, n_walks) if uses.verification.needs_logits else kernels.buckets[-1]
        walks = [(at, rows.walks[at : at + n]) for at in range(0, n_walks, n)]
        starts = range(0, len(rows.prompts), PROMPT_ROWS)
        prompts = [(n_walks + at, rows.prompts[at : at + PROMPT_ROWS]) for at in starts]
        for first, some in [*prompts, *walks]:  # walks come last: their logits are kept
            own = asked[first : first + len(some)]
            plan = make_answer(some, first, self._draws.planned, own, width, kernels.buckets)
            yield _AnsweredRows(first, plan, upload.add(plan.ints, np.int32))

    def begin(self, hidden: Tensor) -> list[Tensor]:
        logits, tables = None, list[Tensor]()
        for piece in self._pieces:
            table, logits = self._kernels.answer(hidden, piece.plan, piece.ints.tensor, self._mask(piece))
            tables.append(table.clone() if len(self._pieces) > 1 else table)  # the next piece may reuse the memory
        return tables if logits is None else [*tables, *self._uses.verification.begin(logits)]

    def finish(self, arrays: Iterator[Array]) -> Readings:
        table = AnswerTable(self._join([next(arrays) for _ in self._pieces]))
        self._draws.table = table
        uses = self._uses
        tops = uses.read_back.finish(uses.read_back.select(table))
        of_prompts = uses.prompt_logprobs.finish(uses.prompt_logprobs.select(table))
        return uses.verification.finish(arrays), tops, of_prompts

    def _mask(self, piece: _AnsweredRows) -> Tensor | None:
        if not (self._draws.has_grammar and piece.plan.kind.draws):
            return None
        upload = Upload(self._kernels.device)
        bits = upload.add(self._draws.make_masks(piece.first, piece.plan.layout.n_rows), np.int32)
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
