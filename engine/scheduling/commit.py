"""Applies a target's answer to a sequence; returns the event for its client and the outcome for its speculator."""

from __future__ import annotations

from math import isnan, nan
from typing import NamedTuple

import numpy as np

from engine.events import ABORT, LENGTH, STOP, SourceCounts, StepEvent, StepTrace
from engine.protocol import Artefacts, Outcome, StepTime
from engine.scheduling.sequence import Sequence, SequenceState
from engine.step import Step, StepResult, Work, WorkResult
from engine.tree import EMPTY_TREE, TokenTree


class Commit(NamedTuple):
    """How a step changed one sequence."""

    sequence: Sequence
    event: StepEvent | None  # None: nothing was emitted (a prompt chunk that is not the last)
    outcome: Outcome | None  # for its speculator; None: nothing to report


def step_time(step: Step, result: StepResult) -> StepTime | None:
    """Return the target's time for a step in which all sequences decode; None for any other step."""
    n = len(step.work)
    rows, context = n, 0
    for work in step.work:
        if work.tree is None:
            return None
        rows += len(work.tree.tokens)
        context += work.n_cached
    if not n:
        return None
    n_read = sum(len(answer.top_ids) for answer in result.results)
    drafting = sum(answer.draft_seconds for answer in result.results)
    seconds = (sum(result.stage_seconds) or result.seconds) - drafting
    return StepTime(seconds, n, rows, context / n, n_read, drafting)


def apply_answer(sequence: Sequence, work: Work, answer: WorkResult, took: StepTime | None = None) -> Commit:
    """Commit one work's answer: tokens, cache position, accepted path, statistics, state."""
    drafts = trace = None
    if work.tree is None:
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
    else:
        outcome = _tree_outcome(work, answer, took)
        _keep_top_ids(sequence, answer)
        sequence.n_cached += 1 + len(answer.accepted)
        sequence.n_observed = sequence.n_cached
        sequence.keep = [node + 1 for node in answer.accepted] if answer.accepted else []
        sequence.state = SequenceState.DRAFTING
        drafts = sequence.stats.count_step(work.tree, answer.accepted, len(answer.tokens))
        trace = _trace(work.tree, answer.accepted) if sequence.request.trace else None
    sequence.tokens.extend(answer.tokens)
    return Commit(sequence, _event(sequence, answer, drafts, trace) if answer.tokens else None, outcome)


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


def _keep_top_ids(sequence: Sequence, answer: WorkResult) -> None:
    """Append the top ids after the root and the accepted nodes to the prompt's.

    So the output is as good a cached prefix as the prompt, for a later turn and after a preemption. A step of a pause
    reads nothing back, and the top ids end before it.
    """
    kept, needs, top = sequence.prompt_top_ids, sequence.needs, answer.top_ids
    if not needs.prompt_top_k or kept.n != sequence.n_cached or not len(top) or top.ids.shape[1] < needs.prompt_top_k:
        return
    rows = np.array([0, *(node + 1 for node in answer.accepted)])
    if len(top) <= rows[-1] or top.nodes[rows[-1]] != rows[-1] - 1:
        return  # probes alone were read back
    k = needs.prompt_top_k
    logprobs = top.logprobs[rows, :k] if needs.top_logprobs and top.logprobs is not None else None
    kept.append(top.ids[rows, :k], logprobs)


def _event(
    sequence: Sequence, answer: WorkResult, drafts: dict[str, SourceCounts] | None, trace: StepTrace | None
) -> StepEvent:
    last, is_first = answer.tokens[-1], sequence.n_output == len(answer.tokens)
    prompt_logprobs = (
        sequence.prompt_logprobs if is_first and sequence.request.params.prompt_logprobs is not None else None
    )
    stopped = last in sequence.request.params.stop_ids
    reason = ABORT if answer.error else STOP if stopped else LENGTH if sequence.max_new <= 0 else None
    return StepEvent(
        token_ids=answer.tokens,
        finish_reason=reason,
        stop_reason=last if reason == STOP else None,
        logprobs=answer.logprobs,
        prompt_logprobs=prompt_logprobs,
        drafts=drafts,
        stats=sequence.stats.freeze() if reason is not None else None,
        trace=trace,
        error=answer.error,
    )


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


def _tree_outcome(work: Work, answer: WorkResult, took: StepTime | None) -> Outcome:
    assert work.tree is not None
    return Outcome(
        tokens=answer.tokens,
        tree=work.tree,
        accepted=answer.accepted,
        top_ids=answer.top_ids,
        artefacts=None if answer.hidden is None and answer.attention is None else _artefacts(answer),
        step=took,
        draft=answer.draft,
    )


def _artefacts(answer: WorkResult, n_known: int = 0) -> Artefacts | None:
    """Return hidden states and attention, without a chunk's first ``n_known`` positions."""
    if answer.hidden is None and answer.attention is None:
        return None
    return Artefacts(None if answer.hidden is None else answer.hidden[n_known:], answer.attention)
