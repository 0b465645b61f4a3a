"""Which texts cover most of a pool: greedily, those that add most contexts that the pool has often.

What a corpus can be asked is decided by the contexts that it holds, so a text is worth the contexts that no chosen text
holds yet, each by how often the pool has it, per token of the text. Contexts that the pool has once are worth nothing:
nothing says that anyone will write them again. This is maximum coverage under a budget, for which the greedy choice is
the usual approximation; gains only fall, so one that was worked out before bounds what it is now, and few are worked
out again ("lazy" greedy, Minoux 1978).
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

import numpy as np
import numpy.typing as npt

from retrieval_store.index.index import Tokens
from retrieval_store.refine.selection import Budget, Numbers
from retrieval_store.refine.texts import FolderTexts

CONTEXT = 3  # tokens
LEAST_BITS, MOST_BITS = 20, 26  # of places in the table of contexts, 5 bytes each; what shares a place counts as one
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Weights = npt.NDArray[np.float32]


def covering(
    texts: FolderTexts, candidates: Numbers, budget: Budget, likelihoods: npt.NDArray[np.float64] | None
) -> Numbers:
    """``candidates`` ``[n]`` in the order in which they cover most, as many as the budget holds.

    Args:
        texts: where the candidates are; read twice and, for those that may come next, again.
        candidates: numbers of texts; where several add as much, nothing for instance, the first of them comes first.
        budget: how much is wanted.
        likelihoods: of each candidate, ``[n]``, from 0 to 1: what its contexts count; None: all the same.
    """
    weights = _weights(texts, candidates, likelihoods)
    lengths = texts.rows["length"]
    waiting = [(-_gain(texts, text, weights) / int(lengths[text]), i) for i, text in enumerate(candidates.tolist())]
    heapify(waiting)
    chosen: list[int] = []
    left = np.inf if budget.tokens is None else budget.tokens
    while waiting and len(chosen) < (budget.texts or len(candidates)):
        place = waiting[0][1]
        text = int(candidates[place])
        if lengths[text] > left:
            heappop(waiting)
            continue
        gain = _gain(texts, text, weights) / int(lengths[text])
        if len(waiting) == 1 or (-gain, place) <= min(waiting[1:3]):  # still at least what the others had at best
            heappop(waiting)
            chosen.append(text)
            left -= int(lengths[text])
            weights[_places(texts.tokens(text), len(weights))] = 0.0
        else:
            heapreplace(waiting, (-gain, place))
    return np.array(chosen, np.int64)


def _weights(texts: FolderTexts, candidates: Numbers, likelihoods: npt.NDArray[np.float64] | None) -> Weights:
    """What every context counts: in how many texts it is, or the sum of their likelihoods; 0 if it is in one alone."""
    n_tokens = int(texts.rows["length"][candidates].sum(dtype=np.int64))
    size = 1 << min(max(n_tokens.bit_length() + 2, LEAST_BITS), MOST_BITS)
    weights, is_shared = np.zeros(size, np.float32), np.zeros(size, np.bool_)
    for i, text in enumerate(candidates.tolist()):
        places = _places(texts.tokens(text), size)
        is_shared[places] |= weights[places] > 0
        weights[places] += 1.0 if likelihoods is None else likelihoods[i]
    weights[~is_shared] = 0.0
    return weights


def _gain(texts: FolderTexts, text: int, weights: Weights) -> float:
    """What the contexts of a text are worth now."""
    return float(weights[_places(texts.tokens(text), len(weights))].sum(dtype=np.float64))


def _places(tokens: Tokens, size: int) -> npt.NDArray[np.int64]:
    """Places of a text's different contexts in a table of ``size``, a power of two."""
    if len(tokens) < CONTEXT:
        return np.empty(0, np.int64)
    hashes = np.zeros(len(tokens) - CONTEXT + 1, np.uint64)
    for i in range(CONTEXT):
        hashes = (hashes ^ tokens[i : i + len(hashes)].astype(np.uint64)) * _MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    return np.unique((hashes & np.uint64(size - 1)).astype(np.int64))
