"""Token masks: words of 32 bits; the lowest bit is the lowest token id."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]  # [ceil(vocab / 32)]


def has(words: Words, token: int) -> bool:
    """Whether a mask allows a token."""
    return token >> 5 < len(words) and bool(words[token >> 5] >> np.uint32(token & 31) & np.uint32(1))


def words_of(tokens: Iterable[int], vocab_size: int) -> Words:
    """Return a mask that allows exactly ``tokens``; ids outside the vocabulary are ignored."""
    words = np.zeros(-(-vocab_size // 32), np.uint32)
    for token in tokens:
        if 0 <= token < vocab_size:
            words[token >> 5] |= np.uint32(1 << (token & 31))
    return words


def forbidden(words: Words, vocab_size: int) -> npt.NDArray[np.bool_]:
    """Return a bool array ``[vocab_size]``, True where the mask forbids a token."""
    bits = np.unpackbits(words.view(np.uint8), count=vocab_size, bitorder="little")
    return np.equal(bits, 0)
