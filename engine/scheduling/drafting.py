"""A round of drafting: what the speculators learn from a step's commits, and what they are asked for."""

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
    """One call of ``DraftPool.advance`` and the sequences it is about."""

    outcomes: list[tuple[int, Outcome]] = field(default_factory=list)
    budgets: dict[int, int] = field(default_factory=dict)
    drafting: list[Sequence] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether no speculator has anything to learn or to draft."""
        return not (self.outcomes or self.budgets)


def start_round(commits: Iterable[Commit], scheduler: Scheduler) -> DraftRound:
    """Sort a step's commits into a round; sequences without a speculator, or with one that rests, are ready at once."""
    draft_round = DraftRound()
    for commit in commits:
        sequence = commit.sequence
        if sequence.state is SequenceState.FINISHED:
            draft_round.finished.append(sequence)
        elif sequence.request.method == AUTOREGRESSIVE:
            scheduler.set_tree(sequence, EMPTY_TREE)
        elif sequence.rest.n_steps and sequence.state is SequenceState.DRAFTING:
            sequence.rest = Pause(sequence.rest.n_steps - 1, sequence.rest.decision)
            scheduler.set_tree(sequence, EMPTY_TREE, reads_back=False, decision=sequence.rest.decision)
        else:
            outcome = _with_unheard(sequence, commit.outcome)
            if outcome is not None:
                draft_round.outcomes.append((sequence.seq, outcome))
            if sequence.state is SequenceState.DRAFTING:
                draft_round.budgets[sequence.seq] = sequence.budget
                draft_round.drafting.append(sequence)
    return draft_round


def _with_unheard(sequence: Sequence, outcome: Outcome | None) -> Outcome | None:
    """The outcome, with the tokens of the steps in which the speculator rested."""
    n_told, sequence.n_told = sequence.n_told, len(sequence.tokens)
    n_news = 0 if outcome is None else len(outcome.tokens)
    if n_told + n_news == sequence.n_told:
        return outcome
    unheard = sequence.tokens[n_told:]
    return Outcome(unheard, EMPTY_TREE) if outcome is None else replace(outcome, tokens=unheard)


def apply_drafts(draft_round: DraftRound, drafts: Mapping[int, Items[Branch]], scheduler: Scheduler) -> None:
    """Compose the drafts into trees; a sequence that no speculator knows decodes without one, and read-backs."""
    for sequence in draft_round.drafting:
        branches = drafts.get(sequence.seq)
        tree = compose(branches or (), draft_round.budgets[sequence.seq])
        decision, heard = None, branches is not None
        if isinstance(branches, Draft):
            decision, sequence.rest = branches.decision, branches.rest
            sequence.wants_draft = branches.wants_next
            heard = heard if decision is None else decision.reads_back
        scheduler.set_tree(sequence, tree, heard, decision)
