"""Trees from a block: one forward scores all depths, each without knowing what is drafted before it.

Masks of ParallelSpec and P-EAGLE, Medusa's heads, the slots of DFlash. The tree is that of the best paths by the sum of
``log q`` over their depths (DDTree, arXiv 2604.12989), at most ``n_nodes`` of them under their ancestors. With a
condition, what a node's own parent says of its children is added to their depth's logits (a Markov head, DSpark,
arXiv 2607.05147), so that two nodes of a depth have children of their own.

Without a condition all depths of all sequences are chosen from at once, with one copy to the host. A condition, or a
history that changes along the path, takes one round per depth (``engine.drafter.trees.rounds``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from engine.drafter.trees.choice import Ask, Choice, DraftVocabulary, choose, draft_randomness, draws, select
from engine.drafter.trees.growth import grow
from engine.drafter.trees.rounds import BlockAsk, BlockDraft, Condition, grow_in_rounds
from engine.drafter.trees.static import StaticTree
from engine.protocol import Branch
from engine.sampling.keys import NoiseKey
from engine.sampling.noise import Randomness
from engine.tree import FloatArray

WIDTH = 64  # children of a node, and nodes of a depth that have children, at most


def block_trees(
    logits: Tensor,
    asks: Sequence[BlockAsk],
    source: str,
    vocabulary: DraftVocabulary | None = None,
    condition: Condition | None = None,
    confidence: FloatArray | None = None,
    randomness: Callable[[NoiseKey], Randomness] = draft_randomness,
) -> list[Branch | None]:
    """A draft per sequence, best nodes first; None where nothing is to be drafted. No sequence's depends on others.

    Args:
        logits: ``[n_seq, n_drafts, vocab]`` fp32; ``[n_seq, n_drafts, D]`` with a ``vocabulary``. Not changed.
        asks: ``[n_seq]``.
        source: of the branches.
        vocabulary: which of the target's ids the columns are; None: all.
        condition: what a node's parent adds to its children's logits; None: nothing.
        confidence: ``[n_seq, n_drafts]``, how likely a draft of that depth is accepted, known before anything is
            drafted. Scores are multiplied by it; a tree of draws takes its shape from it.
        randomness: that of ``choose``.
    """
    n_drafts = logits.shape[1]
    drafts = [
        _begin(seq, ask, min(ask.depth, n_drafts), None if confidence is None else confidence[seq].tolist())
        for seq, ask in enumerate(asks)
        if min(ask.depth, ask.n_nodes) > 0
    ]
    stepwise = [draft for draft in drafts if condition is not None or draft.ask.history is not None]
    at_once = [draft for draft in drafts if condition is None and draft.ask.history is None]
    _grow_at_once(logits, at_once, vocabulary, randomness)
    grow_in_rounds(logits, stepwise, vocabulary, condition, randomness)
    branches: list[Branch | None] = [None] * len(asks)
    for draft in drafts:
        branches[draft.seq] = draft.growth.branch(source)
    return branches


def _begin(seq: int, ask: BlockAsk, depth: int, confidence: list[float] | None) -> BlockDraft:
    acceptance = () if confidence is None else tuple(round(chance, 2) for chance in confidence[:depth])
    width = min(WIDTH, ask.n_nodes)
    growth = grow(ask.params, ask.history, ask.position, depth, ask.n_nodes, width, acceptance)
    return BlockDraft(seq, ask, depth, growth, confidence)


def _grow_at_once(
    logits: Tensor,
    drafts: Sequence[BlockDraft],
    vocabulary: DraftVocabulary | None,
    randomness: Callable[[NoiseKey], Randomness],
) -> None:
    """All depths of all drafts."""
    asks: list[Ask] = []
    rows: list[int] = []
    for draft in drafts:
        for depth, k in enumerate(_widths(draft)):
            asks.append(Ask(draft.ask.params, None, draft.ask.position + depth, k))
            rows.append(draft.seq * logits.shape[1] + depth)
    choices = iter(choose(select(logits.flatten(0, 1), rows), asks, randomness, vocabulary))
    for draft in drafts:
        _feed(draft, [next(choices) for _ in _widths(draft)])


def _widths(draft: BlockDraft) -> list[int]:
    """Tokens that are needed of every depth."""
    if isinstance(draft.growth, StaticTree):
        return draft.growth.sizes()
    return [1 if draws(draft.ask.params) else min(WIDTH, draft.ask.n_nodes)] * draft.depth


def _feed(draft: BlockDraft, choices: Sequence[Choice]) -> None:
    """Let one draft grow by the choices of its depths, the same for all parents; draws are dealt out."""
    for depth, choice in enumerate(choices):
        asks = draft.growth.asks()
        if choice.q is None:
            dealt = [choice] * len(asks)
        else:
            tokens = iter(choice.tokens)
            dealt = [Choice([next(tokens) for _ in range(ask.k)], [], choice.q) for ask in asks]
        if not draft.take(depth, dealt):
            return
