"""A draft round: reports a step's commits to the speculators and turns their drafts into trees.

Only what the next step needs happens before it is sent. Outcomes of resting requests are reported afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from engine.composer import compose
from engine.protocol import Branch, Draft, DraftPool, Outcome
from engine.scheduling.commit import Commit
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence, SequenceState
from engine.tree import EMPTY_TREE

AUTOREGRESSIVE = "autoregressive"


@dataclass(slots=True)
class DraftRound:
    """Arguments of one ``DraftPool.advance`` and the ``settle`` after it, and the sequences that draft or finished."""

    outcomes: list[tuple[int, Outcome]] = field(default_factory=list)
    budgets: dict[int, int] = field(default_factory=dict)
    drafting: list[Sequence] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)
    resting: list[Commit] = field(default_factory=list)  # of sequences that rest; reported after the send

    @property
    def must_advance(self) -> bool:
        """Whether there is anything to report or draft before the send."""
        return bool(self.outcomes or self.budgets)

    @property
    def must_settle(self) -> bool:
        """Whether the pool has work after the send."""
        return bool(self.outcomes or self.budgets or self.resting)

    @property
    def resting_outcomes(self) -> list[tuple[int, Outcome]]:
        """Outcomes of the sequences that rest, for ``DraftPool.settle``."""
        outcomes = ((commit.sequence.seq, commit.outcome) for commit in self.resting)
        return [(seq, outcome) for seq, outcome in outcomes if outcome is not None]


def start_round(commits: Iterable[Commit], scheduler: Scheduler) -> DraftRound:
    """Return the round of a step's commits; a sequence that rests, or has no speculator, is ready at once."""
    draft_round = DraftRound()
    for commit in commits:
        sequence = commit.sequence
        if sequence.state is SequenceState.FINISHED:
            draft_round.finished.append(sequence)
        elif sequence.request.method == AUTOREGRESSIVE:
            scheduler.set_tree(sequence, EMPTY_TREE)
        elif sequence.rests:
            scheduler.set_tree(sequence, EMPTY_TREE, reads_back=False)
            draft_round.resting.append(commit)
        else:
            outcome = commit.outcome
            if outcome is not None:
                draft_round.outcomes.append((sequence.seq, outcome))
            if sequence.state is SequenceState.DRAFTING:
                draft_round.budgets[sequence.seq] = sequence.budget
                draft_round.drafting.append(sequence)
    return draft_round


def run_round(draft_round: DraftRound, pool: DraftPool, scheduler: Scheduler) -> None:
    """Report and draft in this process, and set the trees."""
    if draft_round.must_advance:
        apply_drafts(draft_round, pool.advance(draft_round.outcomes, draft_round.budgets), scheduler)


def apply_drafts(draft_round: DraftRound, drafts: Mapping[int, Items[Branch]], scheduler: Scheduler) -> None:
    """Set the trees composed from the drafts; a sequence without an entry decodes without nodes and read-backs."""
    for sequence in draft_round.drafting:
        branches = drafts.get(sequence.seq)
        tree = compose(branches, draft_round.budgets[sequence.seq]) if branches else EMPTY_TREE
        reads_back = branches is not None
        sequence.decision, sequence.rests = None, False
        if isinstance(branches, Draft):
            sequence.decision, sequence.rests = branches.decision, branches.rests
            sequence.drafts_next = branches.drafts_next
            reads_back = branches.decision is None or branches.decision.reads_back
        scheduler.set_tree(sequence, tree, reads_back)
