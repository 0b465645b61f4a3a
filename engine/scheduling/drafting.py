"""A draft round: reports a step's commits to the speculators and turns their drafts into trees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from msgspec.structs import replace

from engine.composer import compose
from engine.protocol import Branch, Draft, Outcome, Pause
from engine.scheduling.commit import Commit
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence, SequenceState
from engine.tree import EMPTY_TREE

AUTOREGRESSIVE = "autoregressive"


@dataclass(slots=True)
class DraftRound:
    """Arguments of one ``DraftPool.advance``, and the sequences that draft or have finished."""

    outcomes: list[tuple[int, Outcome]] = field(default_factory=list)
    budgets: dict[int, int] = field(default_factory=dict)
    drafting: list[Sequence] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report and nothing to draft."""
        return not (self.outcomes or self.budgets)


def start_round(commits: Iterable[Commit], scheduler: Scheduler) -> DraftRound:
    """Return the round of a step's commits; a sequence whose speculator pauses, or that has none, is ready at once."""
    draft_round = DraftRound()
    for commit in commits:
        sequence = commit.sequence
        if sequence.state is SequenceState.FINISHED:
            draft_round.finished.append(sequence)
        elif sequence.request.method == AUTOREGRESSIVE:
            scheduler.set_tree(sequence, EMPTY_TREE)
        elif sequence.pause.n_steps and sequence.state is SequenceState.DRAFTING:
            sequence.pause = Pause(sequence.pause.n_steps - 1, sequence.pause.decision)
            scheduler.set_tree(sequence, EMPTY_TREE, reads_back=False, decision=sequence.pause.decision)
        else:
            outcome = _with_unreported(sequence, commit.outcome)
            if outcome is not None:
                draft_round.outcomes.append((sequence.seq, outcome))
            if sequence.state is SequenceState.DRAFTING:
                draft_round.budgets[sequence.seq] = sequence.budget
                draft_round.drafting.append(sequence)
    return draft_round


def _with_unreported(sequence: Sequence, outcome: Outcome | None) -> Outcome | None:
    """Return the outcome with the tokens of the pause before it, and count its tokens as reported."""
    n_reported, sequence.n_reported = sequence.n_reported, len(sequence.tokens)
    n_new = 0 if outcome is None else len(outcome.tokens)
    if n_reported + n_new == sequence.n_reported:
        return outcome
    unreported = sequence.tokens[n_reported:]
    return Outcome(unreported, EMPTY_TREE) if outcome is None else replace(outcome, tokens=unreported)


def apply_drafts(draft_round: DraftRound, drafts: Mapping[int, Items[Branch]], scheduler: Scheduler) -> None:
    """Set the trees composed from the drafts; a sequence without an entry decodes without nodes and read-backs."""
    for sequence in draft_round.drafting:
        branches = drafts.get(sequence.seq)
        tree = compose(branches or (), draft_round.budgets[sequence.seq])
        decision, reads_back = None, branches is not None
        if isinstance(branches, Draft):
            decision, sequence.pause, sequence.drafts_next = branches.decision, branches.pause, branches.drafts_next
            reads_back = reads_back if decision is None else decision.reads_back
        scheduler.set_tree(sequence, tree, reads_back, decision)
