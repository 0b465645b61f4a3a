"""Drafts from a block whose rows depend on the path: a round per depth, for all sequences together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import not_
from typing import Protocol

import torch
from torch import Tensor

from engine.drafter.trees.candidates import BlockCandidates
from engine.drafter.trees.choice import LEAST_SCORE, Ask, Choice, DraftVocabulary, choose, select
from engine.drafter.trees.growth import DraftGrowth
from engine.drafter.trees.levels import Levels
from engine.sampling.history import History
from engine.sampling.keys import NoiseKey
from engine.sampling.noise import Randomness
from engine.sampling.params import SamplingParams
from engine.tree import ROOT
from engine.upload import Upload

# Of some rows: their sequences, the depth, what a condition adds, and the asks.
ChooseRows = Callable[[list[int], int, Tensor | None, list[Ask]], list[Choice]]


class Condition(Protocol):
    """What a node's parent says of its children."""

    def __call__(
        self, parents: Tensor, sequences: Tensor, depth: int, states: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """What is to be added to the logits of ``m`` rows.

        Args:
            parents: int64 ``[m]``, the token before each row's children, of the target's ids.
            sequences: int64 ``[m]``, whose rows they are.
            depth: of the block, from 0.
            states: ``[m, ...]``, what the parents' rows returned; None at depth 0, or if they returned none.

        Returns:
            ``[m, vocab]`` or ``[m, D]``, like the logits; ``[m, ...]``, the states of these rows, or None.
        """


@dataclass(slots=True, frozen=True)
class BlockAsk:
    """What is to be drafted for one sequence."""

    params: SamplingParams
    history: History | None  # of prompt and output, if penalties or min_tokens need it; changed
    root: int  # the last committed token
    position: int  # of the first drafted token in prompt + output
    depth: int  # the longest path, as far as the block reaches
    n_nodes: int  # at most


@dataclass(slots=True)
class BlockDraft:
    """A sequence's draft in the making."""

    seq: int
    ask: BlockAsk
    depth: int
    growth: DraftGrowth
    confidence: list[float] | None  # of every depth
    expanded: list[int] = field(default_factory=lambda: [ROOT])  # whose children come next

    def take(self, depth: int, choices: Sequence[Choice]) -> list[int]:
        """Grow by one depth; what is to be expanded then."""
        if self.confidence is not None:
            choices = [_calibrated(choice, self.confidence[depth]) for choice in choices]
        self.expanded = self.growth.take(choices)
        return self.expanded

    def parents(self) -> list[int]:
        """Tokens of the expanded nodes."""
        return [self.ask.root if node == ROOT else self.growth.token(node) for node in self.expanded]


def _calibrated(choice: Choice, chance: float) -> Choice:
    return Choice(choice.tokens, [max(score * chance, LEAST_SCORE) for score in choice.scores], choice.q)


def grow_in_rounds(
    logits: Tensor,
    drafts: Sequence[BlockDraft],
    vocabulary: DraftVocabulary | None,
    condition: Condition | None,
    randomness: Callable[[NoiseKey], Randomness],
) -> None:
    """Let the drafts grow, all of one depth at a time; arguments are those of ``block_trees``."""

    def from_rows(seqs: list[int], depth: int, added: Tensor | None, asks: list[Ask]) -> list[Choice]:
        rows = select(logits.flatten(0, 1), [seq * logits.shape[1] + depth for seq in seqs])
        return choose(rows if added is None else rows + added, asks, randomness, vocabulary)

    by_rank = [condition is not None and isinstance(draft.growth, Levels) for draft in drafts]
    ranked = list(compress(drafts, by_rank))
    if ranked:
        whose = {draft.seq: (draft.ask.params, draft.ask.position) for draft in ranked}
        _run(ranked, condition, BlockCandidates(logits, whose, vocabulary).choose, logits.device)
    _run(list(compress(drafts, map(not_, by_rank))), condition, from_rows, logits.device)


def _run(live: list[BlockDraft], condition: Condition | None, chosen: ChooseRows, device: torch.device) -> None:
    """The rounds of some drafts."""
    above: list[int] = []  # of every row, its parent's row in the round before
    states: Tensor | None = None
    depth = 0
    while live:
        seqs = [draft.seq for draft in live for _ in draft.expanded]
        added = None
        if condition is not None:
            upload = Upload(device)
            tokens = upload.add([token for draft in live for token in draft.parents()])
            whose, rows_above = upload.add(seqs), upload.add(above)
            upload.send()
            if states is not None:
                states = states.index_select(0, rows_above.tensor)
            added, states = condition(tokens.tensor, whose.tensor, depth, states)
        above = _take(live, depth, chosen(seqs, depth, added, [ask for d in live for ask in d.growth.asks()]))
        live = [draft for draft in live if draft.expanded]
        depth += 1


def _take(live: Sequence[BlockDraft], depth: int, choices: Sequence[Choice]) -> list[int]:
    """Grow by one depth; of every row of the next round, its parent's row in this one."""
    above: list[int] = []
    first = 0
    for draft in live:
        row_of = {node: first + i for i, node in enumerate(draft.expanded)}
        first += len(row_of)
        draft.take(depth, choices[first - len(row_of) : first])
        above += [row_of[draft.growth.parent(node)] for node in draft.expanded]
    return above
