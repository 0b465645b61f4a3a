"""Positions in the events of a resumable stream: the ids of its events, which a client sends back to read on.

A position counts tokens, because events depend on which drafts were accepted and tokens do not. ``17`` is after the
event of the 17th token, ``16.1`` after the first of several events that the 17th token ends, and ``17,12`` a position
in each of two choices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.api.answers.completions import CompletionWriter, Envelope
from app.api.answers.logprobs import TokenTexts
from app.api.choice import ChoiceDelta, CompletionChoice
from engine.errors import RequestError

END = b"\n\n"  # of a server-sent event
MAX_CHARS = 2048
POSITION = re.compile(r"(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)
Position = tuple[int, int]  # tokens, and events after them that do not complete the next token


def read_positions(given: str, n_choices: int, param: str) -> list[Position]:
    """The position in each choice; "" and "0" are the beginning of all.

    Raises:
        RequestError: ``given`` is no id of an event of such a stream.
    """
    found = [POSITION.fullmatch(part) for part in given[:MAX_CHARS].split(",")]
    if given in ("", "0"):
        return [(0, 0)] * n_choices
    if len(found) != n_choices or not all(found):
        raise RequestError(
            f"{param} is {given[:32]!r}; it must be the id of an event of this stream: a number of tokens"
            + (f" for each of its {n_choices} choices" if n_choices > 1 else ""),
            param,
        )
    return [(int(one[1]), int(one[2] or 0)) for one in found if one is not None]


class ResumableWriter(CompletionWriter):
    """Writes the events after a position, each with its id.

    It needs the pieces of all choices, one per token and from the first one. ``after`` is by choice.
    """

    def __init__(
        self, envelope: Envelope, choices: Sequence[CompletionChoice], texts: TokenTexts, after: Sequence[Position]
    ) -> None:
        super().__init__(envelope, choices, texts)
        self._after = after
        self._positions = [(0, 0)] * len(choices)

    def event(self, choice: CompletionChoice, piece: ChoiceDelta) -> bytes:
        tokens, n_events = self._positions[choice.index]
        written = super().event(choice, piece).split(END)[:-1]
        kept = []
        for i, event in enumerate(written, start=1):
            completes = bool(piece.token_ids) and i == len(written)
            position = (tokens + 1, 0) if completes else (tokens, n_events + i)
            self._positions[choice.index] = position
            if position > self._after[choice.index]:
                kept.append(b"id: %b\n%b" % (self._id.encode(), event + END))
        if piece.token_ids:
            self._positions[choice.index] = (tokens + len(piece.token_ids), 0)
        return b"".join(kept)

    @property
    def _id(self) -> str:
        # A replay begins with choices of which the client has more already.
        known = map(max, self._positions, self._after)
        return ",".join(f"{tokens}.{n_events}" if n_events else str(tokens) for tokens, n_events in known)
