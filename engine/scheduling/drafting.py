"""The turn of the speculators: from a step's progress to what they learn and what they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from engine.composer import compose
from engine.protocol import Branch, Outcome
from engine.scheduling.commit import Progress
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence, State
from engine.tree import EMPTY_TREE

AUTOREGRESSIVE = "autoregressive"


@dataclass(slots=True)
class Turn:
    """One call of ``DraftPool.advance`` and the sequences it is about."""

    outcomes: list[tuple[int, Outcome]] = field(default_factory=list)
    budgets: dict[int, int] = field(default_factory=dict)
    drafting: list[Sequence] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether no speculator has anything to learn or to draft."""
        return not (self.outcomes or self.budgets)


def take_turn(progress: Iterable[Progress], scheduler: Scheduler) -> Turn:
    """Sort a step's progress; sequences without a speculator are ready at once."""
    turn = Turn()
    for p in progress:
        sequence = p.sequence
        if sequence.state is State.FINISHED:
            turn.finished.append(sequence)
        elif sequence.request.method == AUTOREGRESSIVE:
            scheduler.set_tree(sequence, EMPTY_TREE)
        else:
            if p.outcome is not None:
                turn.outcomes.append((sequence.seq, p.outcome))
            if sequence.state is State.DRAFTING:
                turn.budgets[sequence.seq] = sequence.budget
                turn.drafting.append(sequence)
    return turn


def apply_drafts(turn: Turn, drafts: Mapping[int, Items[Branch]], scheduler: Scheduler) -> None:
    """Compose the drafts into trees; a sequence without a draft decodes without one."""
    for sequence in turn.drafting:
        tree = compose(drafts.get(sequence.seq, ()), turn.budgets[sequence.seq])
        scheduler.set_tree(sequence, tree)
