"""Walks level by level: every sequence still walking contributes the row of its current node.

Only nodes on the accepted path cost anything, which is what counts on a CPU: there a vocabulary's noise takes longer
than everything else. On a GPU each level costs a synchronisation, so only the rejection rule walks so, whose decisions
need whole distributions on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

import torch
from torch import Tensor

from engine.events import NOT_FINITE
from engine.sampling.draw import draw_tokens
from engine.sampling.logprobs import logprobs
from engine.sampling.noise import KeyedRandom
from engine.sampling.processors import process
from engine.upload import Upload
from engine.verify.masks import drawn_params, masked
from engine.verify.rules import Decision, decide_rejection, match
from engine.verify.walk import Pair, Walk, commit, follow


def walk_levels(logits: Tensor, pairs: Sequence[Pair]) -> None:
    """Walk to the end; log-probabilities of the walked rows come last, for all in one go."""
    active: list[Pair] = []
    lost: list[Walk] = []  # that stand at logits that are NaN or infinite
    best: Callable[[int], int] | None = None
    for item, walk in pairs:
        if item.is_plain:
            best = best or _argmax_of(logits)
            follow(item, walk, best)
            # NumPy takes NaN for the largest
            if not all(isfinite(logits[row, token]) for row, token in zip(walk.rows(item), walk.tokens, strict=True)):
                lost.append(walk)
        else:
            active.append((item, walk))
    while active:
        decisions = _decide(_scores(logits, active, lost), active)
        active = [
            (item, walk)
            for (item, walk), (child, token) in zip(active, decisions, strict=True)
            if not commit(item, walk, child, token)
        ]
    _add_logprobs(logits, [pair for pair in pairs if pair[0].params.logprobs is not None])
    for walk in lost:
        walk.error = NOT_FINITE


def _argmax_of(logits: Tensor) -> Callable[[int], int]:
    """The argmax of a row on a CPU, computed for visited rows only."""
    if logits.dtype == torch.float32:
        table = logits.numpy()
        return lambda row: int(table[row].argmax())
    return lambda row: int(logits[row].float().numpy().argmax())  # several times faster than a bf16 argmax


def _scores(logits: Tensor, active: Sequence[Pair], lost: list[Walk]) -> Tensor:
    """What the tokens after the current nodes are drawn from, ``[len(active), vocab]`` fp32.

    Walks at a row with NaN or infinity are added to ``lost``; their scores are made finite.
    """
    rows = _gather(logits, [item.first_row + 1 + walk.node for item, walk in active])
    is_broken = ~rows.sum(dim=-1).isfinite()
    if is_broken.any():
        lost += [walk for (_, walk), is_lost in zip(active, is_broken.tolist(), strict=True) if is_lost]
        rows = rows.masked_fill(is_broken[:, None], 0.0)
    rows = masked(rows, active)
    return process(rows, [drawn_params(item) for item, _ in active], [item.history for item, _ in active])


def _gather(logits: Tensor, rows: list[int]) -> Tensor:
    """``[len(rows), vocab]`` fp32."""
    if len(rows) == 1:
        return logits[rows[0] : rows[0] + 1].float()  # a view: no copy for the most frequent case
    return _select(logits, rows).float()


def _select(rows: Tensor, numbers: list[int]) -> Tensor:
    upload = Upload(rows.device)
    index = upload.add(numbers)
    upload.send()
    return rows.index_select(0, index.tensor)


def _decide(scores: Tensor, active: Sequence[Pair]) -> list[Decision]:
    """One level: the accepted child (or ``None``) and the token of every active item."""
    rejecting = [i for i, (item, _) in enumerate(active) if item.rejects]
    if len(rejecting) == len(active):
        decisions: list[Decision] = [(None, -1)] * len(active)
    else:
        tokens = draw_tokens(scores, [item.noise_key(len(walk.tokens)) for item, walk in active])
        decisions = [
            (match(item.tree, walk.node, token), token) for (item, walk), token in zip(active, tokens, strict=True)
        ]
    if rejecting:
        if len(rejecting) < len(active):
            scores = _select(scores, rejecting)
        p = torch.softmax(scores.double(), dim=-1).cpu().numpy()
        for i, row in zip(rejecting, p, strict=True):
            item, walk = active[i]
            decisions[i] = decide_rejection(row, item.tree, walk.node, KeyedRandom(item.key(len(walk.tokens))))
    return decisions


def _add_logprobs(logits: Tensor, pairs: Sequence[Pair]) -> None:
    """Fill ``logprobs`` of all walks from the raw rows they passed, in one go."""
    if not pairs:
        return
    rows = [row for item, walk in pairs for row in walk.rows(item)]
    tokens = [token for _, walk in pairs for token in walk.tokens]
    ks = [item.params.logprobs or 0 for item, walk in pairs for _ in walk.tokens]
    entries = iter(logprobs(_gather(logits, rows), tokens, ks))
    for _, walk in pairs:
        walk.logprobs = [next(entries) for _ in walk.tokens]
