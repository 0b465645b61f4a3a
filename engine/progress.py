"""What a target's answer does to a sequence, and what the world and the speculator learn of it."""

from __future__ import annotations

from dataclasses import dataclass

from engine.events import LENGTH, STOP, SourceCounts, StepEvent
from engine.protocol import Artefacts, Outcome
from engine.sequence import Sequence, State
from engine.step import Work, WorkResult
from engine.tree import EMPTY_TREE


@dataclass(frozen=True, slots=True)
class Progress:
    """What a step did to one sequence."""

    sequence: Sequence
    event: StepEvent | None  # None: nothing was emitted (a prompt chunk that is not the last)
    outcome: Outcome | None  # for its speculator; None when there is no news for it


def apply_answer(sequence: Sequence, work: Work, answer: WorkResult) -> Progress:
    """Commit one work's answer: tokens, cache position, accepted path, statistics, state."""
    drafts = None
    if work.tree is None:
        sequence.n_cached += len(work.tokens)
        news = _chunk_outcome(sequence, work, answer)
        sequence.state = State.DRAFTING if sequence.n_cached == sequence.n_prefill else State.PREFILLING
    else:
        news = _outcome(work, answer)
        sequence.n_cached += 1 + len(answer.accepted)
        sequence.n_told = sequence.n_cached
        sequence.keep = [node + 1 for node in answer.accepted]
        sequence.state = State.DRAFTING
        drafts = sequence.stats.count_step(work.tree, answer.accepted, len(answer.tokens))
    sequence.tokens.extend(answer.tokens)
    return Progress(sequence, _event(sequence, answer, drafts) if answer.tokens else None, news)


def _event(sequence: Sequence, answer: WorkResult, drafts: dict[str, SourceCounts] | None) -> StepEvent:
    last = answer.tokens[-1]
    stopped = last in sequence.params.stop_ids
    reason = STOP if stopped else LENGTH if sequence.max_new <= 0 else None
    return StepEvent(
        token_ids=answer.tokens,
        finish_reason=reason,
        stop_reason=last if stopped else None,
        logprobs=answer.logprobs,
        drafts=drafts,
        stats=sequence.stats.freeze() if reason is not None else None,
    )


def _chunk_outcome(sequence: Sequence, work: Work, answer: WorkResult) -> Outcome | None:
    """What a chunk tells the speculator; nothing twice, when a sequence is prefilled again after a preemption.

    The chunks of a sequence that goes on behind tokens that somebody else emitted tell of these, too.
    """
    known = max(0, sequence.n_told - work.n_cached)
    if known >= len(work.tokens) and not answer.tokens:
        return None
    sequence.n_told = max(sequence.n_told, work.n_cached + len(work.tokens))
    return _outcome(work, answer, known)


def _outcome(work: Work, answer: WorkResult, known: int = 0) -> Outcome:
    """A step's answer as speculators see it, without a chunk's first ``known`` positions."""
    artefacts = None
    if answer.hidden is not None or answer.attention is not None:
        artefacts = Artefacts(None if answer.hidden is None else answer.hidden[known:], answer.attention)
    return Outcome(
        tokens=answer.tokens,
        tree=work.tree if work.tree is not None else EMPTY_TREE,
        accepted=answer.accepted,
        top_ids=answer.top_ids,
        prompt_top_ids=None if answer.prompt_top_ids is None else answer.prompt_top_ids[known:],
        prompt_top_logprobs=None if answer.prompt_top_logprobs is None else answer.prompt_top_logprobs[known:],
        prompt_start=work.n_cached + known if work.tree is None else 0,
        artefacts=artefacts,
    )
