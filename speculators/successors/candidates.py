"""Compiled set of the successors of one context with their probabilities, found by token."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.compiled import compiled_in_place
from engine.tree import FloatArray, IntArray

MAX_CANDIDATES = 512
SLOTS = 2 * MAX_CANDIDATES  # of the index by token; a power of two, never full
N_SOURCES = 3
_GOLDEN32 = np.uint32(0x9E3779B9)


class SuccessorCandidates(NamedTuple):
    """Scratch space, valid until ``clear_candidates``.

    Functions take it instead of the model that it is part of: machine code takes every array of a tuple as seven
    arguments, and a function that takes the model compiles ten times as long.
    """

    mark: IntArray  # [SLOTS]: the mix in which a slot was last taken
    place: IntArray  # [SLOTS]: the place of its candidate there
    mix: IntArray  # [1]: number of the current mix
    n: IntArray  # [1]
    ids: IntArray  # [MAX_CANDIDATES]
    p: FloatArray  # [MAX_CANDIDATES]
    parts: FloatArray  # [MAX_CANDIDATES, N_SOURCES]: of the mixed probability, by source
    ranked: IntArray  # [MAX_CANDIDATES]: places by probability


def make_candidates() -> SuccessorCandidates:
    mark, place, mix, n, ids, ranked = (
        np.zeros(size, np.int32) for size in (SLOTS, SLOTS, 1, 1, MAX_CANDIDATES, MAX_CANDIDATES)
    )
    p, parts = np.zeros(MAX_CANDIDATES, np.float32), np.zeros((MAX_CANDIDATES, N_SOURCES), np.float32)
    return SuccessorCandidates(mark, place, mix, n, ids, p, parts, ranked)


@compiled_in_place
def clear_candidates(candidates: SuccessorCandidates) -> None:
    candidates.mix[0] += 1
    candidates.n[0] = 0


@compiled_in_place
def add_candidate(candidates: SuccessorCandidates, token: int, p: float, source: int) -> None:
    """Add ``p`` to the probability of ``token``. A new token is dropped if there are MAX_CANDIDATES.

    The index is no array over the vocabulary: most of its cache lines would be missed at every step.
    """
    slot = int(np.uint32(np.uint32(token) * _GOLDEN32) >> np.uint32(16)) & (SLOTS - 1)
    while candidates.mark[slot] == candidates.mix[0] and candidates.ids[candidates.place[slot]] != token:
        slot = (slot + 1) & (SLOTS - 1)
    n = candidates.n[0]
    if candidates.mark[slot] == candidates.mix[0]:
        place = candidates.place[slot]
        candidates.p[place] += p
        candidates.parts[place, source] += p
    elif n < MAX_CANDIDATES:
        candidates.mark[slot] = candidates.mix[0]
        candidates.place[slot] = n
        candidates.ids[n] = token
        candidates.p[n] = p
        for one in range(N_SOURCES):
            candidates.parts[n, one] = p if one == source else 0.0
        candidates.n[0] = n + 1


@compiled_in_place
def rank_candidates(candidates: SuccessorCandidates, k: int) -> int:
    """Set ``ranked`` to the places of the ``k`` most probable candidates, best first; return their number."""
    ranked, p = candidates.ranked, candidates.p
    kept = 0
    for i in range(candidates.n[0]):
        if kept == k:
            if p[i] <= p[ranked[k - 1]]:
                continue
            kept -= 1
        rank = kept
        while rank > 0 and p[ranked[rank - 1]] < p[i]:
            ranked[rank] = ranked[rank - 1]
            rank -= 1
        ranked[rank] = i
        kept += 1
    return kept
