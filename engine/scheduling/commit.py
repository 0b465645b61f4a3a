"""Applies a target's answer to a sequence, and builds the outcome for its speculator and the event for its client.

The next step needs only the sequence's new state. Events and statistics wait until that step is sent.
"""

from __future__ import annotations

from functools import cached_property
from math import isnan, nan

import msgspec
import numpy as np

from engine.events import ABORT, LENGTH, STOP, StepEvent, StepTrace
from engine.protocol import Artefacts, Decision, Outcome, StepTime
from engine.scheduling.sequence import Sequence, SequenceState
from engine.step import Step, StepResult, Work, WorkResult
from engine.tree import EMPTY_TREE, TokenTree


class AnsweredStep:
    """A step with its answer.

    Args:
        step: that was sent.
        result: the answer.
    """

    def __init__(self, step: Step, result: StepResult) -> None:
        self._step = step
        self._result = result

    @cached_property
    def time(self) -> StepTime | None:
        """The target's time for a step in which all sequences decode; None for any other step."""
        n, rows, context, n_read, drafting = len(self._step.work), 0, 0, 0, 0.0
        for work, answer in zip(self._step.work, self._result.results, strict=True):
            if work.tree is None:
                return None
            rows += 1 + len(work.tree.tokens)
            context += work.n_cached
            n_read += len(answer.top_ids.nodes)
            drafting += answer.draft_seconds
        if not n:
            return None
        seconds = (sum(self._result.stage_seconds) or self._result.seconds) - drafting
        return StepTime(seconds, n, rows, context / n, n_read, drafting)


class Commit(msgspec.Struct, eq=False):
    """How a step changed one sequence; a cancelled sequence has no work, answer, outcome and event."""

    sequence: Sequence
    answered: AnsweredStep
    work: Work | None = None
    answer: WorkResult | None = None
    decision: Decision | None = None  # about the tree, by a method that decides about every step
    finish_reason: str | None = None
    chunk_outcome: Outcome | None = None

    @property
    def n_tokens(self) -> int:
        """Tokens that were emitted; 0 for a prompt chunk that is not the last."""
        return 0 if self.answer is None else len(self.answer.tokens)

    @property
    def outcome(self) -> Outcome | None:
        """For its speculator; None: nothing to report."""
        work, answer = self.work, self.answer
        if work is None or answer is None or work.tree is None:
            return self.chunk_outcome
        return Outcome(
            tokens=answer.tokens,
            tree=work.tree,
            accepted=answer.accepted,
            top_ids=answer.top_ids,
            artefacts=None if answer.hidden is None and answer.attention is None else _artefacts(answer),
            step=self.answered.time,
            draft=answer.draft,
            draft_seconds=answer.draft_seconds,
        )


def apply_answer(sequence: Sequence, work: Work, answer: WorkResult, answered: AnsweredStep) -> Commit:
    """Commit one work's answer: tokens, cache position, accepted path, state."""
    chunk_outcome = decision = None
    if work.tree is None:
        chunk_outcome = _apply_chunk(sequence, work, answer)
    else:
        decision = sequence.decision
        sequence.n_cached += 1 + len(answer.accepted)
        sequence.n_observed = sequence.n_cached
        sequence.keep = [node + 1 for node in answer.accepted] if answer.accepted else []
        sequence.state = SequenceState.DRAFTING
    sequence.tokens.extend(answer.tokens)
    reason = _finish_reason(sequence, answer) if answer.tokens else None
    if reason is not None:
        _keep_top_ids(sequence, work, answer)  # now: the sequence's text is cached at once
    return Commit(sequence, answered, work, answer, decision, reason, chunk_outcome)


def build_event(commit: Commit) -> StepEvent | None:
    """Count a commit in the sequence's statistics and return its event; None: nothing was emitted.

    Called once, after the next step was sent.
    """
    sequence, work, answer = commit.sequence, commit.work, commit.answer
    if work is None or answer is None:
        return None
    drafts = trace = None
    if work.tree is not None:
        if commit.finish_reason is None:
            _keep_top_ids(sequence, work, answer)
        drafts = sequence.stats.count_step(work.tree, answer.accepted, len(answer.tokens), commit.decision)
        trace = _trace(work.tree, answer.accepted) if sequence.request.trace else None
    if not answer.tokens:
        return None
    is_first = sequence.n_output == len(answer.tokens)
    shows_prompt = is_first and sequence.request.params.prompt_logprobs is not None
    reason = commit.finish_reason
    return StepEvent(
        token_ids=answer.tokens,
        finish_reason=reason,
        stop_reason=answer.tokens[-1] if reason == STOP else None,
        logprobs=answer.logprobs,
        prompt_logprobs=sequence.prompt_logprobs if shows_prompt else None,
        drafts=drafts,
        stats=sequence.stats.freeze() if reason is not None else None,
        trace=trace,
        error=answer.error,
    )


def _finish_reason(sequence: Sequence, answer: WorkResult) -> str | None:
    """Return why the sequence ends with the answer's last token; None: it goes on."""
    if answer.error:
        return ABORT
    if answer.tokens[-1] in sequence.request.params.stop_ids:
        return STOP
    return LENGTH if sequence.max_new <= 0 else None


def _apply_chunk(sequence: Sequence, work: Work, answer: WorkResult) -> Outcome | None:
    """Commit a prompt chunk, but not its tokens; return its outcome."""
    sequence.n_cached = work.n_cached + len(work.tokens)
    if answer.prompt_top_ids is not None:
        sequence.prompt_top_ids.append(answer.prompt_top_ids, answer.prompt_top_logprobs)
    if answer.prompt_logprobs is not None:  # once, even if the prompt is read again after a preemption
        sequence.prompt_logprobs += answer.prompt_logprobs[len(sequence.prompt_logprobs) - work.n_cached :]
    outcome = _chunk_outcome(sequence, work, answer)
    sequence.state = SequenceState.PREFILLING
    if sequence.n_cached == sequence.n_prefill:
        sequence.state = SequenceState.DRAFTING
        sequence.stats.count_prefilled()
    return outcome


def _trace(tree: TokenTree, accepted: list[int]) -> StepTrace:
    scores = [nan] * len(tree) if tree.scores is None else [float(score) for score in tree.scores]
    return StepTrace(
        tokens=tree.tokens,
        parents=tree.parents,
        depths=tree.depths,
        sources=tree.sources,
        proposers=tree.proposers,
        probe=tree.probe,
        scores=[None if isnan(score) else score for score in scores],
        names=tree.source_names,
        accepted=accepted,
    )


def _keep_top_ids(sequence: Sequence, work: Work, answer: WorkResult) -> None:
    """Append the top ids after the root and the accepted nodes to the prompt's.

    So the output is as good a cached prefix as the prompt, for a later turn and after a preemption. A step of a rest
    reads nothing back, and the top ids end before it.
    """
    if work.tree is None or not len(answer.top_ids):
        return
    kept, needs, top = sequence.prompt_top_ids, sequence.needs, answer.top_ids
    if not needs.prompt_top_k or kept.n != work.n_cached or top.ids.shape[1] < needs.prompt_top_k:
        return
    rows = np.array([0, *(node + 1 for node in answer.accepted)])
    if len(top) <= rows[-1] or top.nodes[rows[-1]] != rows[-1] - 1:
        return  # probes alone were read back
    k = needs.prompt_top_k
    logprobs = top.logprobs[rows, :k] if needs.top_logprobs and top.logprobs is not None else None
    kept.append(top.ids[rows, :k], logprobs)


def _chunk_outcome(sequence: Sequence, work: Work, answer: WorkResult) -> Outcome | None:
    """Return the outcome of a prompt chunk, each position once, even if it is prefilled again after a preemption.

    The first chunk also reports the prefix that the cache held. The chunks of a resumed sequence also report the tokens
    that its former router emitted.
    """
    first, last = sequence.n_observed, work.n_cached + len(work.tokens)
    if first >= last and not answer.tokens:
        return None
    sequence.n_observed = max(first, last)
    ids, logprobs = sequence.prompt_top_ids.part(first, last)
    return Outcome(
        tokens=answer.tokens,
        tree=EMPTY_TREE,
        prompt_top_ids=ids,
        prompt_top_logprobs=logprobs,
        prompt_start=first,
        n_read=len(work.tokens),
        artefacts=_artefacts(answer, max(0, first - work.n_cached)),
        draft=answer.draft,
    )


def _artefacts(answer: WorkResult, n_known: int = 0) -> Artefacts | None:
    """Return hidden states and attention, without a chunk's first ``n_known`` positions."""
    if answer.hidden is None and answer.attention is None:
        return None
    return Artefacts(None if answer.hidden is None else answer.hidden[n_known:], answer.attention)
