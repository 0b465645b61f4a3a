"""From token ids to text while the ids are still arriving: incremental detokenisation and stop strings.

Knows tokenizers and strings; knows nothing of requests, steps or HTTP. Text is returned only once no later token can
change it, so the pieces always add up to the text that decoding all ids at once gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

REPLACEMENT = "\ufffd"  # a decoder writes it for bytes that are not (yet) a character
WINDOW = 16  # tokens decoded again with every push before the window moves on
CONTEXT = 4  # tokens that it keeps: an open character has at most 3 bytes, in one token each, and one is in front of it


@dataclass(frozen=True)
class _Profile:
    """What incremental decoding must know of a tokenizer; computed once for each."""

    special_ids: frozenset[int]  # ids that `skip_special_tokens` leaves out
    byte_ids: frozenset[int]  # <0x00>..<0xFF> of a byte-fallback vocabulary
    size: int  # ids from here on may be padding of the model's vocabulary, which has no text


@lru_cache(maxsize=8)
def _profile(tokenizer: PreTrainedTokenizerFast) -> _Profile:
    backend: Tokenizer = tokenizer.backend_tokenizer
    special = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
    byte_ids: list[int] = []
    if backend.decoder is not None and b"ByteFallback" in backend.decoder.__getstate__():
        names = (f"<0x{value:02X}>" for value in range(256))
        byte_ids = [i for i in map(backend.token_to_id, names) if i is not None]
    return _Profile(special, frozenset(byte_ids), backend.get_vocab_size(with_added_tokens=True))


class Detokenizer:
    """Text of one growing token sequence.

    Decoders are not concatenative (leading spaces, characters made of several tokens), so every push decodes a short
    window of recent tokens again and returns the text that is new. The window keeps tokens in front of the new ones, so
    whatever a decoder does to the start of a text, or to the rest of a character that was cut through, happens to text
    that was returned before. The pieces add up to ``tokenizer.decode(ids, clean_up_tokenization_spaces=False)``.

    Args:
        tokenizer: of the model.
        skip_special_tokens: special tokens have no text.
        shown: ids of special tokens that have theirs nevertheless.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        skip_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        profile = _profile(tokenizer)
        self._skipped = profile.special_ids - shown if skip_special_tokens else frozenset()
        self._byte_ids = profile.byte_ids
        self._size = profile.size
        self._window: list[int] = []
        self._sent = 0  # characters of the window's text that were returned already

    def push(self, token_ids: Sequence[int]) -> str:
        """Append tokens; returns the text that became certain, possibly empty."""
        window = self._window
        skipped, size, known = self._skipped, self._size, self._backend.id_to_token
        window.extend([i for i in token_ids if i not in skipped and (i < size or known(i) is not None)])
        # A run of byte tokens becomes characters only if the whole run is valid UTF-8: wait for its end.
        if not window or (self._byte_ids and window[-1] in self._byte_ids):
            return ""
        text = self._decode(window)
        is_open = text.endswith(REPLACEMENT)  # perhaps the first bytes of a character; at most one mark stands for them
        end = len(text) - is_open
        new = text[self._sent : end]
        self._sent = max(self._sent, end)
        if len(window) > WINDOW:
            self._move_on(is_open)
        return new

    def flush(self) -> str:
        """The sequence is complete: returns the text held back until now, and starts over with an empty sequence."""
        rest = self._decode(self._window)[self._sent :] if self._window else ""
        self._window, self._sent = [], 0
        return rest

    def _move_on(self, is_open: bool) -> None:
        """Drop old tokens. A character that is open begins among those that stay, so from there on their text is that
        of the whole window; in front of it may be marks for the rest of a character that was cut through."""
        tail = self._window[-CONTEXT:]
        text = self._decode(tail)
        if text:  # an empty start would let the decoder treat the next token as the first of a text
            self._window, self._sent = tail, len(text) - is_open

    def _decode(self, ids: list[int]) -> str:
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        return text


class _StopString:
    """How much of one stop string a growing text ends with (Knuth, Morris and Pratt): no character of the text is
    looked at again, so crafted strings cost no more than others."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.n_matched = 0  # the text ends with so many characters of the beginning; less than all of them
        # Of every beginning of the stop string that was matched so far: the longest shorter beginning that it ends with
        self._borders = [0, 0]

    def advance(self, text: str, end: int, *, counts: bool) -> int | None:
        """Append ``text[:end]``; returns where in it the stop string is first complete.

        None if it never is, or if it is and the match does not count.
        """
        stop, n, borders = self.stop, self.n_matched, self._borders
        at = 0
        while at < end:
            if not n:
                at = text.find(stop[0], at, end)
                if at < 0:
                    break
            elif text[at] != stop[n]:
                n = borders[n]
                continue
            n += 1
            at += 1
            if n == len(borders):
                self._add_border()
            if n == len(stop):
                if counts:
                    return at
                n = borders[n]
        self.n_matched = n
        return None

    def _add_border(self) -> None:
        """Learn of one beginning more; over a whole text no more steps than the text has characters."""
        stop, borders = self.stop, self._borders
        last, border = stop[len(borders) - 1], borders[-1]
        while border and stop[border] != last:
            border = borders[border]
        borders.append(border + (stop[border] == last))


class StopMatcher:
    """Finds the first stop string in a growing text, independent of how the text is cut into pieces.

    The match that is complete first wins, and among those the longest. ``matched`` is the string found, ``tokens`` how
    many tokens had been pushed when it was complete. A character takes constant time per stop string, on average.

    Args:
        stops: the stop strings.
        first_token: a match that is complete with fewer tokens does not count.
    """

    def __init__(self, stops: Sequence[str], first_token: int = 0) -> None:
        if not all(stops):
            raise ValueError("a stop string is empty")
        self._stops = [_StopString(stop) for stop in stops]
        self._firsts = frozenset(stop[0] for stop in stops)
        self._first_token = first_token
        self._held = ""  # a possible beginning of a stop string
        self.matched: str | None = None
        self.tokens = 0

    def push(self, text: str, n_tokens: int = 1) -> str:
        """Append text that came with ``n_tokens`` tokens; returns text that is certainly before any stop string.

        Push token by token if ``tokens`` is to be exact. After a match everything is ignored.
        """
        if self.matched is not None:
            return ""
        self.tokens += n_tokens
        if not self._held and self._firsts.isdisjoint(text):  # the usual case
            return text
        end = self._advance(text)
        buffer = self._held + text
        if self.matched is not None:
            self._held = ""
            return buffer[: len(buffer) - len(text) + end - len(self.matched)]
        held = max((stop.n_matched for stop in self._stops), default=0)
        self._held = buffer[len(buffer) - held :]
        return buffer[: len(buffer) - held]

    def flush(self) -> str:
        """The text is complete: returns the text that was held back, empty after a match."""
        rest, self._held = self._held, ""
        return rest

    def _advance(self, text: str) -> int:
        """Where in ``text`` the first match ends, all of it without one; sets ``matched``."""
        end = len(text)
        for stop in self._stops:
            found = stop.advance(text, end, counts=self.tokens >= self._first_token)
            if found is not None and (self.matched is None or found < end or len(stop.stop) > len(self.matched)):
                end, self.matched = found, stop.stop
        return end
