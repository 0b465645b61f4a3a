"""Rows of a drafter's cache: those of committed tokens, and those of a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.segment import Segment
from engine.drafter.trees.draft_tree import DraftRequest
from engine.kv.arena import BlockTable
from engine.tree import ROOT
from engine.upload import Upload


@dataclass(slots=True)
class DraftedSequence:
    """A drafter's state of one sequence, in addition to its rows in the cache."""

    table: BlockTable  # the target's
    n_rows: int  # rows in the cache, in slots 0 to n_rows - 1
    pending_state: Tensor | None = None  # [1, width], of the last position, whose next token is not committed yet
    has_failed: bool = False  # rows are missing, and the sequence gets no further draft
    waiting: list[CommittedTokens] = field(default_factory=list)  # of steps that are not read yet, in order


@dataclass(frozen=True, slots=True)
class CommittedTokens:
    """The tokens of one sequence that a step committed, with the states that the drafter reads."""

    sequence: DraftedSequence
    first: int  # position of the first token
    states: Tensor  # [n, width]
    tokens: list[int]  # [n]
    drawn: int | None  # the token after them; None: the next chunk of the prompt has it
    request: DraftRequest | None  # the draft after the drawn token, if any


@dataclass(frozen=True, slots=True)
class NewRows:
    """A sequence's next rows in the cache, from slot ``first`` on."""

    first: int
    tokens: list[int]  # [n]
    states: Tensor | None  # [n, width]; None for a drafter that reads tokens alone


@dataclass(frozen=True)
class DraftRows:
    """One sequence's rows of a forward pass, after those in the cache.

    Args:
        table: of the sequence; row ``i`` has slot ``n_before + i``.
        n_before: rows in the cache; every row sees all of them.
        n_rows: rows, at consecutive positions unless ``parents`` says otherwise.
        parents: ``[n_rows]``, ``ROOT`` is the last row in the cache; a row sees its ancestors. None: a row sees all
            rows before it.
        n_run: rows at the beginning that an earlier forward pass of the same draft ran and cached.
        is_block: every row sees all rows, later ones too.
    """

    table: BlockTable
    n_before: int
    n_rows: int
    parents: Sequence[int] | None = None
    n_run: int = 0
    is_block: bool = False

    @cached_property
    def depths(self) -> list[int]:
        """The distance of every row's position from the first one."""
        if self.parents is None:
            return list(range(self.n_rows))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent == ROOT else depths[parent] + 1)
        return depths

    @property
    def positions(self) -> list[int]:
        """Positions of the rows that have not run yet."""
        return [self.n_before + depth for depth in self.depths[self.n_run :]]

    @property
    def slots(self) -> NDArray[np.int64]:
        """Arena rows of all rows, ``[n_rows]``."""
        return self.table.row_numbers(self.n_before, self.n_before + self.n_rows)

    def segment(self) -> Segment:
        """Return the rows as attention under masks takes them."""
        visible = None
        if self.parents is not None:
            visible = np.eye(self.n_rows, dtype=np.bool_)
            for row, parent in enumerate(self.parents):
                if parent != ROOT:
                    visible[row] |= visible[parent]
        elif self.is_block:
            visible = np.ones((self.n_rows, self.n_rows), np.bool_)
        return Segment(self.n_before, self.depths, visible, self.table)


def join_steps(steps: Sequence[CommittedTokens]) -> CommittedTokens:
    """Return the tokens of consecutive steps, at least one, as if one step had committed them."""
    last = steps[-1]
    states, tokens = torch.cat([one.states for one in steps]), [token for one in steps for token in one.tokens]
    return CommittedTokens(last.sequence, steps[0].first, states, tokens, last.drawn, last.request)


def take_pair_rows(committed: CommittedTokens) -> NewRows:
    """Return the complete rows of a state and the token after it, each in the slot of its state, and count them.

    The last state waits for its token if the step drew none.
    """
    sequence, tokens, states, first = committed.sequence, committed.tokens, committed.states, committed.first
    if committed.drawn is not None:
        tokens = [*tokens, committed.drawn]
    if sequence.pending_state is None:
        tokens = tokens[1:]
    else:
        states, first = torch.cat((sequence.pending_state, states)), first - 1
    n = len(tokens)
    sequence.pending_state = states[n:].clone() if n < len(states) else None  # a view would keep all states
    sequence.n_rows = first + n
    return NewRows(first, tokens, states[:n])


def take_token_rows(committed: CommittedTokens) -> NewRows:
    """Return the rows of tokens alone that the cache lacks, each in its own slot, and count them.

    The previous step cached its drawn token already. The drawn token waits if the blocks have no slot for it yet.
    """
    sequence, first = committed.sequence, committed.sequence.n_rows
    tokens = [*committed.tokens, *([] if committed.drawn is None else [committed.drawn])][first - committed.first :]
    n_slots = len(sequence.table.blocks) * sequence.table.block_size
    tokens = tokens[: n_slots - first]
    sequence.n_rows = first + len(tokens)
    return NewRows(first, tokens, None)


def upload_ids(device: torch.device, *lists: Sequence[int]) -> list[Tensor]:
    """Return lists of integers as int64 tensors, in one copy to the device."""
    upload = Upload(device)
    parts = [upload.add(numbers) for numbers in lists]
    upload.send()
    return [part.tensor for part in parts]
