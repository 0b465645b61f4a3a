"""Chooses the texts that cover most of a pool: greedily, those that add most contexts that are frequent in the pool.

A corpus answers the contexts that it contains. So the gain of a text is the sum over its contexts that no chosen text
has yet, each weighted by how often it occurs in the pool, per token of the text. Contexts that occur once have no
weight: nobody may write them again. This is maximum coverage under a budget, which greedy choice approximates. Gains
only fall, so an earlier gain is an upper bound, and few are computed again ("lazy" greedy, Minoux 1978).
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

import numpy as np
import numpy.typing as npt

from retrieval_store.index.index import Tokens
from retrieval_store.refine.selection import Budget, Numbers
from retrieval_store.refine.texts import FolderTexts

CONTEXT = 3  # tokens
LEAST_BITS, MOST_BITS = (
    20,
    26,
)  # of the size of the table of contexts, 5 bytes a place
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Weights = npt.NDArray[np.float32]


def covering(
    texts: FolderTexts, candidates: Numbers, budget: Budget, likelihoods: npt.NDArray[np.float64] | None
) -> Numbers:
    """Return as many of ``candidates`` ``[n]`` as the budget allows, in the order in which they cover most.

    The first candidate wins a tie. ``likelihoods`` ``[n]``, from 0 to 1, weight the contexts of each; None: 1 for all.
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
        if len(waiting) == 1 or (-gain, place) <= min(waiting[1:3]):  # at least the upper bound of all others
            heappop(waiting)
            chosen.append(text)
            left -= int(lengths[text])
            weights[_places(texts.tokens(text), len(weights))] = 0.0
        else:
            heapreplace(waiting, (-gain, place))
    return np.array(chosen, np.int64)


def _weights(texts: FolderTexts, candidates: Numbers, likelihoods: npt.NDArray[np.float64] | None) -> Weights:
    """Return the weight of each context: its number of texts or the sum of their likelihoods; 0 if only one has it."""
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
    return float(weights[_places(texts.tokens(text), len(weights))].sum(dtype=np.float64))


def _places(tokens: Tokens, size: int) -> npt.NDArray[np.int64]:
    """Return the places of a text's different contexts in a table of ``size``, a power of two."""
    if len(tokens) < CONTEXT:
        return np.empty(0, np.int64)
    hashes = np.zeros(len(tokens) - CONTEXT + 1, np.uint64)
    for i in range(CONTEXT):
        hashes = (hashes ^ tokens[i : i + len(hashes)].astype(np.uint64)) * _MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    return np.unique((hashes & np.uint64(size - 1)).astype(np.int64))
