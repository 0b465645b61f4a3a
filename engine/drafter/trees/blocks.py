"""Draft trees from a block: one forward pass scores all depths, without the tokens drafted before them.

Masks of ParallelSpec and P-EAGLE, Medusa's heads and the slots of DFlash score such blocks. The tree keeps the best
paths by the sum of ``log q`` over their depths (DDTree, arXiv 2604.12989). A condition adds logits that depend on a
node's parent (a Markov head: DSpark, arXiv 2607.05147), so that nodes of one depth differ in their children.

Without a condition, one call chooses for all depths of all sequences, with one copy to the host. A condition, or a
history that changes along the path, takes one call per depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from msgspec import structs
from torch import Tensor

from engine.device import fetch
from engine.drafter.trees import choice as choosing
from engine.drafter.trees.choice import Choice, ChoiceRequest, DraftVocabulary, select_rows
from engine.drafter.trees.draft_tree import DraftRequest, DraftTree, TreeLevel, grow_trees
from engine.drafter.trees.growth import start_draft
from engine.protocol import Branch
from engine.sampling.keys import NoiseKey
from engine.sampling.noise import Randomness
from engine.sampling.params import SamplingParams
from engine.sampling.processors import process
from engine.tree import FloatArray
from engine.upload import Upload

WIDTH = 64  # most children of a node, and most nodes of a depth that have children
N_CANDIDATES = 64  # tokens of a depth that are ranked under a condition

Condition = Callable[[Tensor, Tensor, int, Tensor | None], tuple[Tensor, Tensor | None]]
"""``condition(parents, sequences, depth, states)`` returns what to add to the logits of ``m`` rows, ``[m, vocab]`` or
``[m, D]``, and the rows' states ``[m, ...]`` or None. It takes each row's previous token (the target's id), int64
``[m]``, its sequence, int64 ``[m]``, the depth from 0, and the states that the parents' rows returned."""

Choose = Callable[[TreeLevel, Tensor | None], list[Choice]]  # from a level and the condition's logits


def draft_blocks(
    logits: Tensor,
    requests: Sequence[DraftRequest],
    source: str,
    vocabulary: DraftVocabulary | None = None,
    condition: Condition | None = None,
    confidence: FloatArray | None = None,
    randomness: Callable[[NoiseKey], Randomness] = choosing.draft_randomness,
) -> list[Branch | None]:
    """Return a draft per sequence, best nodes first; None if it asks for none. Sequences do not affect each other.

    Args:
        logits: ``[n_seq, n_drafts, vocab]`` fp32; ``[n_seq, n_drafts, D]`` with a ``vocabulary``. Not changed.
        requests: ``[n_seq]``.
        source: of the branches.
        vocabulary: the target's ids of the columns; None: all.
        condition: adds logits that depend on the parent.
        confidence: ``[n_seq, n_drafts]``, probability that a draft of that depth is accepted. It scales scores and
            shapes trees of draws.
        randomness: as in ``choose_tokens``.
    """
    block = _Block(logits, vocabulary, condition, None if confidence is None else confidence.tolist(), randomness)
    trees = {i: block.start(i, one) for i, one in enumerate(requests) if min(one.depth, one.n_nodes) > 0}
    independent, ranked, others = dict[int, DraftTree](), dict[int, DraftTree](), dict[int, DraftTree]()
    for seq, tree in trees.items():
        params, history = tree.request.params, tree.request.history
        if history is not None or (condition is not None and params.rejects):
            others[seq] = tree
        else:
            (independent if condition is None else ranked)[seq] = tree
    if independent:
        block.grow(independent, block.choose_at_once(independent))
    if ranked:
        block.grow(ranked, _Candidates(logits, ranked, vocabulary).choose)
    block.grow(others, block.choose)
    return [trees[seq].branch(source) if seq in trees else None for seq in range(len(requests))]


@dataclass(frozen=True, slots=True)
class _Block:
    """The arguments of ``draft_blocks``."""

    logits: Tensor
    vocabulary: DraftVocabulary | None
    condition: Condition | None
    confidence: list[list[float]] | None
    randomness: Callable[[NoiseKey], Randomness]

    def start(self, seq: int, request: DraftRequest) -> DraftTree:
        n_drafts = self.logits.shape[1]
        chances = self.confidence[seq][: min(request.depth, n_drafts)] if self.confidence is not None else ()
        acceptance = tuple(round(chance, 2) for chance in chances)
        return start_draft(request, n_drafts, min(WIDTH, request.n_nodes), acceptance)

    def grow(self, trees: Mapping[int, DraftTree], choose: Choose) -> None:
        """Grow trees by choices under the condition, whose states follow the paths; confidence scales their scores."""
        states: Tensor | None = None

        def choose_level(level: TreeLevel) -> list[Choice]:
            nonlocal states
            added = None
            if self.condition is not None:
                upload = Upload(self.logits.device)
                tokens, owners, parents = (upload.add(ids) for ids in (level.tokens, level.owners, level.parents))
                upload.send()
                states = None if states is None else states.index_select(0, parents.tensor)
                added, states = self.condition(tokens.tensor, owners.tensor, level.depth, states)
            choices = choose(level, added)
            if self.confidence is None:
                return choices
            chances = (self.confidence[seq][level.depth] for seq in level.owners)
            return [_scaled(choice, chance) for choice, chance in zip(choices, chances, strict=True)]

        grow_trees(trees, choose_level)

    def choose(self, level: TreeLevel, added: Tensor | None) -> list[Choice]:
        """Choose after each row from the whole vocabulary."""
        rows = self._rows((seq, level.depth) for seq in level.owners)
        scores = rows if added is None else rows + added
        return choosing.choose_tokens(scores, level.choice_requests(), self.randomness, self.vocabulary)

    def choose_at_once(self, trees: Mapping[int, DraftTree]) -> Choose:
        """Choose for all depths; nodes of a depth share its best tokens, or deal out its draws."""
        places: list[tuple[int, int]] = []
        requests: list[ChoiceRequest] = []
        for seq, tree in trees.items():
            for depth, k in enumerate(tree.level_sizes()):
                places.append((seq, depth))
                requests.append(ChoiceRequest(tree.request.params, None, tree.request.position + depth, k))
        choices = choosing.choose_tokens(self._rows(places), requests, self.randomness, self.vocabulary)
        chosen = dict(zip(places, choices, strict=True))
        undealt = {place: iter(choice.tokens) for place, choice in chosen.items()}

        def choose(level: TreeLevel, added: Tensor | None) -> list[Choice]:
            dealt = []
            for seq, request in zip(level.owners, level.choice_requests(), strict=True):
                choice, tokens = chosen[seq, level.depth], undealt[seq, level.depth]
                if choice.q is not None:
                    choice = Choice([next(tokens) for _ in range(request.k)], [], choice.q)
                dealt.append(choice)
            return dealt

        return choose

    def _rows(self, places: Iterator[tuple[int, int]] | Sequence[tuple[int, int]]) -> Tensor:
        """Return logits ``[n, width]`` of sequences and depths."""
        n_drafts = self.logits.shape[1]
        return select_rows(self.logits.flatten(0, 1), [seq * n_drafts + depth for seq, depth in places])


class _Candidates:
    """Ranks the best tokens of each depth under a condition, 64 columns instead of 150,000.

    The candidates are the best tokens without the condition: a token that only the condition makes probable is missed,
    and probabilities are those among the candidates.
    """

    def __init__(self, logits: Tensor, trees: Mapping[int, DraftTree], vocabulary: DraftVocabulary | None) -> None:
        n_drafts = logits.shape[1]
        self._first_row = {seq: i * n_drafts for i, seq in enumerate(trees)}
        requests = [
            ChoiceRequest(tree.request.params, None, tree.request.position + depth)
            for tree in trees.values()
            for depth in range(n_drafts)
        ]
        # Greedy parameters apply biases, but neither temperature nor truncation.
        greedy = [ChoiceRequest(structs.replace(one.params, temperature=0.0), None, one.position) for one in requests]
        biased = choosing.process_rows(select_rows(logits, list(trees)).flatten(0, 1), greedy, vocabulary)
        noise = choosing.add_noise(torch.zeros_like(biased), requests, vocabulary)
        self._columns = torch.topk(biased + noise, min(N_CANDIDATES, biased.shape[-1]), dim=-1).indices
        self._logits, self._noise = biased.gather(1, self._columns), noise.gather(1, self._columns)
        ids = self._columns if vocabulary is None else vocabulary.ids[self._columns]
        self._ids = fetch([ids.int()])[0].tolist()

    def choose(self, level: TreeLevel, added: Tensor | None) -> list[Choice]:
        """Choose after each row from the candidates of its depth."""
        rows, requests = [self._first_row[seq] + level.depth for seq in level.owners], level.choice_requests()
        upload = Upload(self._logits.device)
        index, temperatures = upload.add(rows), upload.add(choosing.temperature_column(requests), np.float32)
        upload.send()
        logits = self._logits[index.tensor]
        if added is not None:
            logits = logits + added.gather(1, self._columns[index.tensor])
        scores = process(logits, [_without_ids(one.params) for one in requests], [None] * len(requests))
        ranked = choosing.rank_tokens(scores * temperatures.tensor + self._noise[index.tensor], requests)
        return [
            Choice([self._ids[row][column] for column in choice.tokens], choice.scores)
            for row, choice in zip(rows, ranked, strict=True)
        ]


def _without_ids(params: SamplingParams) -> SamplingParams:
    """Return the parameters without those by id: the candidates obey them already, and columns are no ids here."""
    if not (params.logit_bias or params.allowed_ids or params.bad_words):
        return params
    return structs.replace(params, logit_bias={}, allowed_ids=(), bad_words=())


def _scaled(choice: Choice, chance: float) -> Choice:
    return Choice(choice.tokens, [max(score * chance, choosing.LEAST_SCORE) for score in choice.scores], choice.q)
