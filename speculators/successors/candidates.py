"""The successors that one mix names, with their probabilities, found by token. Compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.compiled.functions import compiled_in_place
from engine.tree import FloatArray, IntArray

MAX_CANDIDATES = 512
SLOTS = 2 * MAX_CANDIDATES  # of the index of candidates by token; a power of two, never full
_GOLDEN32 = np.uint32(0x9E3779B9)


class Candidates(NamedTuple):
    """Scratch space: what is in it counts until the next mix begins.

    A tuple of its own, and handed on instead of the model that it is part of: machine code takes every array of a tuple
    as seven arguments, and what takes the model's compiles ten times as long.
    """

    mark: IntArray  # [SLOTS]: the mix in which a slot was last taken
    place: IntArray  # [SLOTS]: the place of its candidate there
    mix: IntArray  # [1]: number of the current mix
    ids: IntArray  # [MAX_CANDIDATES]
    p: FloatArray  # [MAX_CANDIDATES]
    from_text: FloatArray  # [MAX_CANDIDATES]: the part of p that counts of the text gave
    from_corpus: FloatArray  # [MAX_CANDIDATES]: the part of p that texts to look up gave


def make_candidates() -> Candidates:
    """Room for MAX_CANDIDATES."""
    mark, place, mix, ids = (np.zeros(n, np.int32) for n in (SLOTS, SLOTS, 1, MAX_CANDIDATES))
    p, from_text, from_corpus = (np.zeros(MAX_CANDIDATES, np.float32) for _ in range(3))
    return Candidates(mark, place, mix, ids, p, from_text, from_corpus)


@compiled_in_place
def slot_of(candidates: Candidates, token: int) -> int:
    """The slot of ``token`` in the index of candidates; free (``mark`` is another mix's) if it is none.

    Not an array over the vocabulary: most of its lines would be far from the processor at every step.
    """
    slot = int(np.uint32(np.uint32(token) * _GOLDEN32) >> np.uint32(16)) & (SLOTS - 1)
    while candidates.mark[slot] == candidates.mix[0] and candidates.ids[candidates.place[slot]] != token:
        slot = (slot + 1) & (SLOTS - 1)
    return slot


@compiled_in_place
def add_candidate(candidates: Candidates, n: int, token: int, p: float, from_text: float, from_corpus: float) -> int:
    """Give ``token`` the probability ``p``; returns the number of candidates."""
    slot = slot_of(candidates, token)
    if candidates.mark[slot] == candidates.mix[0]:
        place = candidates.place[slot]
        candidates.p[place] += p
        candidates.from_text[place] += from_text
        candidates.from_corpus[place] += from_corpus
        return n
    if n == MAX_CANDIDATES:
        return n
    candidates.mark[slot] = candidates.mix[0]
    candidates.place[slot] = n
    candidates.ids[n] = token
    candidates.p[n] = p
    candidates.from_text[n] = from_text
    candidates.from_corpus[n] = from_corpus
    return n + 1
