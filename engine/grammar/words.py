"""Masks of tokens: words of 32 bits, the lowest bit the lowest id."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]  # [ceil(vocab / 32)]


def has(words: Words, token: int) -> bool:
    """Whether a mask allows a token."""
    return token >> 5 < len(words) and bool(words[token >> 5] >> np.uint32(token & 31) & np.uint32(1))


def words_of(tokens: Iterable[int], vocab_size: int) -> Words:
    """The mask that allows these tokens alone; those outside the vocabulary are left out."""
    words = np.zeros(-(-vocab_size // 32), np.uint32)
    for token in tokens:
        if 0 <= token < vocab_size:
            words[token >> 5] |= np.uint32(1 << (token & 31))
    return words


def forbidden(words: Words, vocab_size: int) -> npt.NDArray[np.bool_]:
    """True for each token that a mask does not allow, ``[vocab_size]``."""
    bits = np.unpackbits(words.view(np.uint8), count=vocab_size, bitorder="little")
    return np.equal(bits, 0)
