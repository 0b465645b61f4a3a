"""What a step tells a drafter of a sequence, and what is drafted behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.drafter.trees.rounds import BlockAsk
from engine.kv.arena import BlockTable


@dataclass(slots=True)
class DraftedSequence:
    """What a drafter keeps of one sequence, besides its rows in the cache."""

    table: BlockTable  # the target's
    n_rows: int  # rows in the cache: slots 0 to n_rows - 1
    pending: Tensor | None = None  # [1, width], the state of the last position, whose successor was not known
    has_failed: bool = False  # rows are missing: nothing is drafted any more
    waiting: list[Committed] = field(default_factory=list)  # steps that are not read yet, in order


@dataclass(frozen=True, slots=True)
class Committed:
    """What a step committed of one sequence."""

    sequence: DraftedSequence
    first: int  # position of the first state
    states: Tensor  # [n, width], what the drafter reads at these positions
    tokens: list[int]  # [n], at these positions
    drawn: int | None  # the token behind them; None: it comes with the next chunk
    wanted: BlockAsk | None  # what is to be drafted behind the drawn token


def joined(steps: Sequence[Committed]) -> Committed:
    """What consecutive steps, at least one, committed of a sequence, as if it were one step's."""
    last = steps[-1]
    states, tokens = torch.cat([one.states for one in steps]), [token for one in steps for token in one.tokens]
    return Committed(last.sequence, steps[0].first, states, tokens, last.drawn, last.wanted)


@dataclass(frozen=True, slots=True)
class CommittedRows:
    """A sequence's next rows in the drafter's cache, from slot ``first`` on."""

    first: int
    tokens: list[int]  # [n]
    states: Tensor | None  # [n, width]; None for a drafter that reads none


def pair_rows(committed: Committed) -> CommittedRows:
    """Rows of tokens beside the states before them, each in the slot of its state; those that are complete.

    The last state waits for the token behind it, which comes with the next step where this one drew none.
    """
    sequence, tokens, states, first = committed.sequence, committed.tokens, committed.states, committed.first
    if committed.drawn is not None:
        tokens = [*tokens, committed.drawn]
    if sequence.pending is None:
        tokens = tokens[1:]
    else:
        states, first = torch.cat((sequence.pending, states)), first - 1
    n = len(tokens)
    sequence.pending = states[n:].clone() if n < len(states) else None  # a view would keep all states
    sequence.n_rows = first + n
    return CommittedRows(first, tokens, states[:n])


def token_rows(committed: Committed) -> CommittedRows:
    """Rows of tokens alone, each in its own slot; the first may be there already, as the step before drew it.

    The drawn token waits for the next step where the blocks have no slot for it yet.
    """
    sequence, first = committed.sequence, committed.sequence.n_rows
    tokens = [*committed.tokens, *([] if committed.drawn is None else [committed.drawn])][first - committed.first :]
    n_slots = len(sequence.table.blocks) * sequence.table.block_size
    tokens = tokens[: n_slots - first]
    sequence.n_rows = first + len(tokens)
    return CommittedRows(first, tokens, None)
