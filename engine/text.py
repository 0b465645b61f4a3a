"""Incremental detokenisation and stop strings.

Knows tokenizers and strings, not requests, steps or HTTP. Text is returned only once no later token can change it, so
the pieces always add up to the text of all ids decoded at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

REPLACEMENT = "\ufffd"  # decoders write it for bytes that are not (yet) a character
WINDOW = 16  # tokens that every push decodes again, before the window moves
CONTEXT = 4  # tokens kept when it moves: at most 3 of an incomplete character, and one before it


@dataclass(frozen=True)
class _Profile:
    """Properties of a tokenizer for incremental decoding; computed once for each."""

    special_ids: frozenset[int]  # ids that `skip_special_tokens` leaves out
    byte_ids: frozenset[int]  # <0x00>..<0xFF> of a byte-fallback vocabulary
    size: int  # ids from here on may be padding of the model's vocabulary, without text


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

    Decoders are not concatenative (leading spaces, characters of several tokens), so every push decodes a short window
    of recent tokens again and returns the new text. The window keeps tokens before the new ones: whatever a decoder
    does to the start of a text, or to an incomplete character there, affects only text returned before. The pieces add
    up to ``tokenizer.decode(ids, clean_up_tokenization_spaces=False)``.

    Args:
        tokenizer: of the model.
        skip_special_tokens: leave out the text of special tokens.
        shown: ids of special tokens whose text is not left out.
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
        self._sent = 0  # characters of the window's text returned before

    def push(self, token_ids: Sequence[int]) -> str:
        """Append tokens; return the text that became certain, possibly empty."""
        window = self._window
        skipped, size, known = self._skipped, self._size, self._backend.id_to_token
        window.extend([i for i in token_ids if i not in skipped and (i < size or known(i) is not None)])
        # A run of byte tokens is decoded to characters only if the whole run is valid UTF-8: wait for its end.
        if not window or (self._byte_ids and window[-1] in self._byte_ids):
            return ""
        text = self._decode(window)
        is_open = text.endswith(REPLACEMENT)  # perhaps an incomplete character, for which a decoder writes at most one
        end = len(text) - is_open
        new = text[self._sent : end]
        self._sent = max(self._sent, end)
        if len(window) > WINDOW:
            self._move_window(is_open)
        return new

    def flush(self) -> str:
        """End the sequence: return the text held back until now, and start over with an empty sequence."""
        rest = self._decode(self._window)[self._sent :] if self._window else ""
        self._window, self._sent = [], 0
        return rest

    def _move_window(self, is_open: bool) -> None:
        """Drop old tokens.

        An incomplete character begins among the kept tokens, so from there on their text equals the whole window's.
        Before it there may be replacement marks for the rest of a character that was cut.
        """
        tail = self._window[-CONTEXT:]
        text = self._decode(tail)
        if text:  # an empty start would let the decoder treat the next token as the first of a text
            self._window, self._sent = tail, len(text) - is_open

    def _decode(self, ids: list[int]) -> str:
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        return text


class _StopString:
    """Matches one stop string in a growing text (Knuth, Morris and Pratt).

    No character of the text is read again, so crafted strings cost no more than others.
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.n_matched = 0  # first characters of the stop string that the text ends with; fewer than all
        # For every prefix of the stop string that was matched so far: its longest shorter prefix that it ends with
        self._borders = [0, 0]

    def advance(self, text: str, end: int, *, counts: bool) -> int | None:
        """Append ``text[:end]``; return where in it the stop string is first complete.

        Return None if it never is, or if the match does not count.
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
        """Add the border of one more prefix; takes no more steps over a whole text than it has characters."""
        stop, borders = self.stop, self._borders
        last, border = stop[len(borders) - 1], borders[-1]
        while border and stop[border] != last:
            border = borders[border]
        borders.append(border + (stop[border] == last))


class StopMatcher:
    """Finds the first stop string in a growing text, however the text is cut into pieces.

    The match that is complete first wins, and of several the longest. ``matched`` is the string found, ``tokens`` the
    number of tokens pushed when it was complete. A character takes constant time per stop string, on average.

    Args:
        stops: the stop strings.
        first_token: a match that is complete with fewer tokens does not count.
    """

    def __init__(self, stops: Sequence[str], first_token: int = 0) -> None:
        if not all(stops):
            raise ValueError("a stop string is empty; it must have at least 1 character")
        self._stops = [_StopString(stop) for stop in stops]
        self._firsts = frozenset(stop[0] for stop in stops)
        self._first_token = first_token
        self._held = ""  # a possible prefix of a stop string
        self.matched: str | None = None
        self.tokens = 0

    def push(self, text: str, n_tokens: int = 1) -> str:
        """Append the text of ``n_tokens`` tokens; return text that is certainly before any stop string.

        ``tokens`` is exact only if every push is one token. After a match everything is ignored.
        """
        if self.matched is not None:
            return ""
        self.tokens += n_tokens
        if not self._held and self._firsts.isdisjoint(text):  # nearly every push
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
        """End the text: return the text held back, empty after a match."""
        rest, self._held = self._held, ""
        return rest

    def _advance(self, text: str) -> int:
        """Return the end of the first match in ``text``, or its length without one; set ``matched``."""
        end = len(text)
        for stop in self._stops:
            found = stop.advance(text, end, counts=self.tokens >= self._first_token)
            if found is not None and (self.matched is None or found < end or len(stop.stop) > len(self.matched)):
                end, self.matched = found, stop.stop
        return end
