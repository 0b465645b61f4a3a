"""Verification of a ragged batch of token trees: which nodes are accepted, which tokens a step commits.

Level-synchronous: every sequence still walking contributes the row of its current node, the rows are processed, and
one argmax and one transfer decide the level. Each node is thus processed on its own prefix, and only nodes on the
accepted path cost anything. Greedy sequences whose raw logits decide skip all that.

Ties go to the lowest token id everywhere (torch's and NumPy's argmax agree on that), so a row decides alike alone,
gathered, and on a GPU. Walking is committing: histories are updated on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from engine.events import TokenLogprob
from engine.sampling.draw import draw_tokens
from engine.sampling.keys import NoiseKey
from engine.sampling.noise import KeyedRandom
from engine.sampling.params import SamplingParams
from engine.sampling.processors import History, is_shifted, logprobs, process
from engine.tree import ROOT, TokenTree
from engine.verify.rules import decide_rejection, match


@dataclass(slots=True)
class WalkItem:
    """One sequence of the batch; the stage fills it in from the step."""

    tree: TokenTree
    first_row: int  # row of the root in the logits; node i has row first_row + 1 + i
    params: SamplingParams
    history: History | None  # needed if params have penalties or min_tokens; updated by the walk
    n_context: int  # committed tokens; the token drawn at the root gets this position
    max_new: int | None = None  # draw at most so many tokens


@dataclass(slots=True)
class Walk:
    """What a step commits for one sequence."""

    accepted: list[int] = field(default_factory=list)  # nodes of the accepted path, root first
    tokens: list[int] = field(default_factory=list)  # the accepted nodes' tokens, then the bonus token if any
    logprobs: list[TokenLogprob] | None = None  # one per token, if the request asks for them


def verify(logits: torch.Tensor, items: Sequence[WalkItem]) -> list[Walk]:
    """Walk every tree; ``tokens`` holds at least one token per item unless its ``max_new`` is 0.

    A walk ends with a bonus token, or early: on a stop id, or when ``max_new`` tokens are drawn. A token that a
    child carries counts as accepted even when it ends the walk, so ``tokens`` is then the accepted path alone.

    Args:
        logits: ``[rows, vocab]``, any float dtype, any device; not changed.
        items: the sequences, in any mix of parameters.
    """
    logits = logits.detach()
    walks = [Walk() for _ in items]
    active = [pair for pair in zip(items, walks, strict=True) if pair[0].max_new is None or pair[0].max_new > 0]
    plain: list[tuple[WalkItem, Walk]] = []
    processed: list[tuple[WalkItem, Walk]] = []
    for pair in active:
        (plain if _is_plain(pair[0]) else processed).append(pair)
    if plain:
        best = _argmax_of(logits)
        for item, walk in plain:
            _walk_plain(best, item, walk)
    _walk_levels(logits, processed)
    _add_logprobs(logits, [pair for pair in active if pair[0].params.logprobs is not None])
    return walks


def _is_plain(item: WalkItem) -> bool:
    """Whether the argmax of raw logits decides at every node."""
    return item.params.is_greedy and not is_shifted(item.params, item.history)


def _argmax_of(logits: torch.Tensor) -> Callable[[int], int]:
    """The argmax of a row: on a CPU computed for visited rows only, elsewhere one kernel and one transfer for all."""
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1).tolist().__getitem__
    if logits.dtype == torch.float32:
        table = logits.numpy()
        return lambda row: int(table[row].argmax())
    return lambda row: int(logits[row].float().numpy().argmax())  # several times faster than a bf16 argmax


def _walk_plain(best: Callable[[int], int], item: WalkItem, walk: Walk) -> None:
    node = ROOT
    while True:
        token = best(item.first_row + 1 + node)
        child = match(item.tree, node, token)
        if _commit(item, walk, child, token):
            return
        node = walk.accepted[-1]


def _commit(item: WalkItem, walk: Walk, child: int | None, token: int) -> bool:
    """Record one drawn token; True when the walk is over."""
    walk.tokens.append(token)
    if item.history is not None:
        item.history.add(token)
    if child is None:
        return True
    walk.accepted.append(child)
    return token in item.params.stop_ids or len(walk.tokens) == item.max_new


def _walk_levels(logits: torch.Tensor, active: list[tuple[WalkItem, Walk]]) -> None:
    while active:
        nodes = [walk.accepted[-1] if walk.accepted else ROOT for _, walk in active]
        rows = _gather(logits, [item.first_row + 1 + node for (item, _), node in zip(active, nodes, strict=True)])
        scores = process(rows, [item.params for item, _ in active], [item.history for item, _ in active])
        decisions = _decide(scores, active, nodes)
        active = [
            (item, walk)
            for (item, walk), (child, token) in zip(active, decisions, strict=True)
            if not _commit(item, walk, child, token)
        ]


def _gather(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """``[len(rows), vocab]`` fp32."""
    if len(rows) == 1:
        return logits[rows[0] : rows[0] + 1].float()  # a view: no copy for the most frequent case
    return logits[torch.tensor(rows, device=logits.device)].float()


def _decide(
    scores: torch.Tensor, active: list[tuple[WalkItem, Walk]], nodes: list[int]
) -> list[tuple[int | None, int]]:
    """One level: the accepted child (or ``None``) and the token of every active item."""
    rejecting = [i for i, (item, _) in enumerate(active) if _rejects(item.params)]
    if len(rejecting) == len(active):
        decisions: list[tuple[int | None, int]] = [(None, -1)] * len(active)
    else:
        tokens = draw_tokens(scores, [_noise_key(item, walk) for item, walk in active])
        decisions = [
            (match(item.tree, node, token), token) for (item, _), node, token in zip(active, nodes, tokens, strict=True)
        ]
    if rejecting:
        index = torch.tensor(rejecting, device=scores.device)
        p = torch.softmax(scores[index].double(), dim=-1).cpu().numpy()
        for i, row in zip(rejecting, p, strict=True):
            item, walk = active[i]
            decisions[i] = decide_rejection(row, item.tree, nodes[i], KeyedRandom(_key(item, walk)))
    return decisions


def _rejects(params: SamplingParams) -> bool:
    return params.verification == "rejection" and not params.is_greedy


def _noise_key(item: WalkItem, walk: Walk) -> NoiseKey | None:
    """Key of the next Gumbel row; none where no noise decides."""
    return None if item.params.is_greedy or _rejects(item.params) else _key(item, walk)


def _key(item: WalkItem, walk: Walk) -> NoiseKey:
    return item.params.seed, item.params.choice, item.n_context + len(walk.tokens)


def _add_logprobs(logits: torch.Tensor, pairs: list[tuple[WalkItem, Walk]]) -> None:
    """Fill ``logprobs`` of all walks from the raw rows they passed, in one go."""
    if not pairs:
        return
    rows: list[int] = []
    for item, walk in pairs:
        rows += [item.first_row + 1 + node for node in [ROOT, *walk.accepted][: len(walk.tokens)]]
    tokens = [token for _, walk in pairs for token in walk.tokens]
    ks = [item.params.logprobs or 0 for item, walk in pairs for _ in walk.tokens]
    entries = iter(logprobs(_gather(logits, rows), tokens, ks))
    for _, walk in pairs:
        walk.logprobs = [next(entries) for _ in walk.tokens]
