"""The trained drafter on the last stage: it reads each verified step and adds drafts to the step's results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import torch
from torch import Tensor

from engine.drafter.serving.rows import CommittedTokens, DraftedSequence
from engine.drafter.serving.runtime import DraftRuntime
from engine.drafter.trees.draft_tree import DraftRequest
from engine.stage.answer import StageSequence
from engine.stage.artefacts import kept_rows
from engine.stage.base import Activations
from engine.stage.packing import Span
from engine.step import Work, WorkResult
from engine.upload import Upload


class StageDrafts:
    """Drafts after a step.

    Args:
        runtime: the drafter.
        norm: the target's final norm.
    """

    def __init__(self, runtime: DraftRuntime, norm: Callable[[Tensor], Tensor]) -> None:
        self.runtime, self._norm = runtime, norm

    def attach(
        self,
        works: Sequence[Work],
        spans: Sequence[Span],
        sequences: Sequence[StageSequence],
        results: list[WorkResult],
        activations: Activations,
    ) -> list[WorkResult]:
        """The results, with a draft for each work that requests one.

        Args:
            works: of the step.
            spans: rows of every work.
            sequences: of every work.
            results: of every work.
            activations: of the last layer.
        """
        served = [
            (i, sequence)
            for i, (work, result) in enumerate(zip(works, results, strict=True))
            if (sequence := self.runtime.of(work.seq)) is not None
            and not (sequence.has_failed or _is_over(work, result, sequences[i]))
        ]
        if not served:
            return results
        kept = [kept_rows(works[i], results[i].accepted) for i, _ in served]
        rows = [spans[i].first + row for (i, _), its in zip(served, kept, strict=True) for row in its]
        states = torch.split(self._states(activations, rows), [len(its) for its in kept])
        committed = [
            self._committed(works[i], results[i], sequence, sequences[i], its)
            for (i, sequence), its in zip(served, states, strict=True)
        ]
        asked = [(i, one) for (i, _), one in zip(served, committed, strict=True) if one.request is not None]
        # Not part of the measured time: nothing is pending where every step has a draft.
        self.runtime.catch_up([one.sequence for _, one in asked])
        began = time.perf_counter()
        branches = self.runtime.draft([one for _, one in asked])
        share = (time.perf_counter() - began) / max(len(asked), 1)
        self.runtime.wait([one for one in committed if one.request is None])
        for (i, _), branch in zip(asked, branches, strict=True):
            results[i] = msgspec.structs.replace(results[i], draft=branch, draft_seconds=share)
        return results

    def _states(self, activations: Activations, rows: list[int]) -> Tensor:
        """The drafter's inputs at these rows of the step, ``[n, width]``."""
        source = activations.fused if self.runtime.reads_taps else activations.hidden
        assert source is not None, "no stage has tapped a layer for the drafter"
        upload = Upload(source.device)
        index = upload.add(rows)
        upload.send()
        states = source[0].index_select(0, index.tensor)
        return self.runtime.finish(states) if self.runtime.reads_taps else self._norm(states)

    def _committed(
        self, work: Work, result: WorkResult, drafted: DraftedSequence, sequence: StageSequence, states: Tensor
    ) -> CommittedTokens:
        accepted = [] if work.tree is None else [work.tree.tokens[node] for node in result.accepted]
        tokens, drawn = [*work.tokens, *accepted], result.tokens[-1] if result.tokens else None
        request, end = None, work.n_cached + len(tokens)
        depth = work.max_new - len(result.tokens) - 1  # the last token of a text comes without a draft
        if drawn is not None and work.draft_nodes and depth > 0 and self.runtime.has_room(drafted, end + 1):
            params = sequence.start.params
            history = None if sequence.history is None else sequence.history.copy()
            request = DraftRequest(params, history, drawn, end + 1, depth, work.draft_nodes)
        return CommittedTokens(drafted, work.n_cached, states, tokens, drawn, request)


def _is_over(work: Work, result: WorkResult, sequence: StageSequence) -> bool:
    """Whether the step ended the text, so that no draft is useful."""
    if not result.tokens:
        return False
    return len(result.tokens) >= work.max_new or result.tokens[-1] in sequence.start.params.stop_ids
