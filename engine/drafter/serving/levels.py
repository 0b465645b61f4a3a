"""Drafts that grow depth by depth, a forward of all sequences' new nodes for each (EAGLE).

A node's row has its own token and the output of its parent's row for a state, and sees the committed rows and its
ancestors. Rows of nodes lie behind the committed ones in the cache and are dropped with the draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.drafter.serving.base import upload_ids
from engine.drafter.serving.committed import Committed
from engine.drafter.serving.rows import DraftRows
from engine.drafter.trees.choice import DraftVocabulary, choose
from engine.drafter.trees.growth import DraftGrowth, grow
from engine.protocol import Branch
from engine.tree import ROOT


@dataclass(slots=True)
class _LevelDraft:
    """One sequence's draft, and its rows."""

    growth: DraftGrowth
    committed: Committed
    outputs: dict[int, int]  # candidate -> its row's place among all outputs so far
    rows: dict[int, int] = field(default_factory=dict)  # candidate -> its row behind the committed ones
    parents: list[int] = field(default_factory=list)  # of the rows

    def add(self, candidates: Sequence[int]) -> DraftRows:
        """Candidates' rows behind those so far; their parents have one, or are the root. Returns all."""
        n_run = len(self.parents)
        for candidate in candidates:
            self.rows[candidate] = len(self.parents)
            self.parents.append(self.rows.get(self.growth.parent(candidate), ROOT))
        sequence = self.committed.sequence
        return DraftRows(sequence.table, sequence.n_rows, len(self.parents), [*self.parents], n_run)


def grow_levels(
    score: Callable[[Tensor], Tensor],
    run: Callable[[list[DraftRows], Tensor, Tensor], Tensor],
    roots: Tensor,
    asked: Sequence[Committed],
    vocabulary: DraftVocabulary | None,
    depth: int,
    beam: int,
    source: str,
) -> list[Branch | None]:
    """Drafts of several sequences.

    Args:
        score: logits ``[n, draft_vocab]`` of outputs ``[n, hidden]``.
        run: outputs ``[n, hidden]`` of a level's rows, from their tokens, int64 ``[n]``, and their parents' outputs.
        roots: ``[n, hidden]``, outputs of the sequences' last committed rows.
        asked: the sequences; each wants a draft.
        vocabulary: of the logits; None: the target's.
        depth: most tokens on a path.
        beam: nodes expanded at a depth, and children of each.
        source: of the branches.
    """
    drafts = [_LevelDraft(_growth(one, depth, beam), one, {ROOT: place}) for place, one in enumerate(asked)]
    growing, outputs, latest = drafts, roots, roots
    while growing:
        asks = [draft.growth.asks() for draft in growing]
        choices = iter(choose(score(latest), [ask for some in asks for ask in some], vocabulary=vocabulary))
        new = [draft.growth.take([next(choices) for _ in some]) for draft, some in zip(growing, asks, strict=True)]
        alive = [(draft, candidates) for draft, candidates in zip(growing, new, strict=True) if candidates]
        growing = [draft for draft, _ in alive]
        if growing:
            rows, *told = _level(alive, len(outputs))
            tokens, parents = upload_ids(outputs.device, *told)
            latest = run(rows, tokens, outputs.index_select(0, parents))
            outputs = torch.cat((outputs, latest))
    return [draft.growth.branch(source) for draft in drafts]


def _growth(committed: Committed, depth: int, beam: int) -> DraftGrowth:
    wanted = committed.wanted
    assert wanted is not None, "this sequence wants no draft"
    depth = min(depth, wanted.depth)
    return grow(wanted.params, wanted.history, wanted.position, depth, wanted.n_nodes, beam)


def _level(
    alive: Sequence[tuple[_LevelDraft, list[int]]], n_outputs: int
) -> tuple[list[DraftRows], list[int], list[int]]:
    """The next level of drafts and the candidates that they expand, its tokens, and where parents' outputs are."""
    rows, tokens, parents = list[DraftRows](), list[int](), list[int]()
    for draft, candidates in alive:
        for candidate in candidates:
            parents.append(draft.outputs[draft.growth.parent(candidate)])
            draft.outputs[candidate] = n_outputs + len(tokens)
            tokens.append(draft.growth.token(candidate))
        rows.append(draft.add(candidates))
    return rows, tokens, parents
