"""What one step adds to the text of a choice."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.events import TokenLogprob


class ChoiceDelta(msgspec.Struct, frozen=True, gc=False):
    """The part of a choice that one step adds."""

    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None  # stop id or stop string
    logprobs: list[TokenLogprob] | None = None
    offsets: list[int] | None = None  # of each token's text in the choice's text, in characters

    @staticmethod
    def join(pieces: Sequence[ChoiceDelta]) -> ChoiceDelta:
        """All pieces of a choice as one piece."""
        last = pieces[-1]
        return ChoiceDelta(
            "".join(p.text for p in pieces),
            [token for p in pieces for token in p.token_ids],
            last.finish_reason,
            last.stop_reason,
            None if last.logprobs is None else [entry for p in pieces for entry in p.logprobs or ()],
            None if last.offsets is None else [offset for p in pieces for offset in p.offsets or ()],
        )
