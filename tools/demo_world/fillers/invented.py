"""Invented words: so that copying is learnt, not a list."""

from __future__ import annotations

import random

from tools.demo_world.draw import words_of

ONSETS = words_of("""
    b br c ch d dr f fl g gr h j k l m n p pl qu r s sh st t tr v w y z
    """)
VOWELS = words_of("a e i o u a e i o u ai ea")
CODAS = ["", "", "", "", "l", "m", "n", "r", "s", "t", "x", "nd", "rk", "lt"]


def invented_word(rng: random.Random, least: int, most: int) -> str:
    """A lower-case word of `least` to `most` syllables."""
    n = rng.randint(least, most)
    syllables = [rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(n)]
    return "".join(syllables) + rng.choice(CODAS)
