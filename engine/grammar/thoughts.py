"""The free text before an answer: where it ends, and which tokens may end it.

Markers are matched in the bytes of tokens: a marker may be one token, several tokens, or share a token with adjacent
text. A token that ends the thought and begins the answer is not allowed, because the grammar reads whole tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.grammar.grammar import Thought
from engine.grammar.words import Words, has, words_of

NEWLINE = b"\n"
MOST_NEWLINES = 2  # that models write after the closing marker; they do not belong to the answer
OPENING, INSIDE, AFTER = range(3)


class ThoughtPlace(NamedTuple):
    """The state of a text before its answer."""

    phase: int  # OPENING, INSIDE or AFTER
    progress: int  # matched bytes of the marker of this phase; AFTER: newlines


class ThoughtTokens:
    """How the tokens of one vocabulary move through a thought.

    Args:
        thought: its markers.
        texts: bytes of every token.
        eos_ids: tokens that end a text; they are not allowed inside a thought.
        vocab_size: of the model.
    """

    def __init__(self, thought: Thought, texts: Sequence[bytes], eos_ids: Sequence[int], vocab_size: int) -> None:
        self._opening, self._closing = thought.opening.encode(), thought.closing.encode()
        self._texts = texts
        self.start = ThoughtPlace(OPENING if self._opening else INSIDE, 0)
        by_first: dict[int, list[int]] = {byte: [] for byte in self._opening + NEWLINE}
        enders: list[int] = []
        last = self._closing[-1:]
        for token, text in enumerate(texts):
            if text and text[0] in by_first:
                by_first[text[0]].append(token)
            if last in text[:-1]:
                enders.append(token)
        self.newlines = words_of(by_first[NEWLINE[0]], vocab_size)  # tokens that begin with one
        free = ~words_of(eos_ids, vocab_size)
        self._words = {
            ThoughtPlace(OPENING, n): self._passing(ThoughtPlace(OPENING, n), by_first[byte], vocab_size)
            for n, byte in enumerate(self._opening)
        }
        for n in range(len(self._closing)):
            place = ThoughtPlace(INSIDE, n)
            stuck = [token for token in enders if self.move(place, token) is None]
            self._words[place] = free & ~words_of(stuck, vocab_size)
        for n in range(MOST_NEWLINES):
            self._words[ThoughtPlace(AFTER, n)] = self._passing(
                ThoughtPlace(AFTER, n), by_first[NEWLINE[0]], vocab_size
            )

    def words(self, place: ThoughtPlace) -> Words:
        """Return the mask of tokens after which the answer has not begun."""
        return self._words[place]

    def move(self, place: ThoughtPlace, token: int) -> ThoughtPlace | None:
        """Return the place after a token; None if the token belongs neither to the thought nor to its markers."""
        phase, count = place
        text = self._texts[token] if token < len(self._texts) else b""
        if not text or (place == (INSIDE, 0) and self._closing[0] not in text):
            return place if phase == INSIDE else None
        for byte in text:
            if phase == OPENING:
                if byte != self._opening[count]:
                    return None
                count += 1
                if count == len(self._opening):
                    phase, count = INSIDE, 0
            elif phase == INSIDE:
                count = _overlap(self._closing[:count] + bytes((byte,)), self._closing)
                if count == len(self._closing):
                    phase, count = AFTER, 0
            elif byte == NEWLINE[0] and count < MOST_NEWLINES:
                count += 1
            else:
                return None
        return ThoughtPlace(phase, count)

    def begins_line(self, token: int) -> bool:
        """Whether a token's text begins with a line break."""
        return has(self.newlines, token)

    def _passing(self, place: ThoughtPlace, tokens: Iterable[int], vocab_size: int) -> Words:
        return words_of((token for token in tokens if self.move(place, token) is not None), vocab_size)


def _overlap(text: bytes, marker: bytes) -> int:
    """Return the length of the longest suffix of ``text`` that is a prefix of ``marker``."""
    return next(
        size for size in range(min(len(text), len(marker)), -1, -1) if marker.startswith(text[len(text) - size :])
    )
