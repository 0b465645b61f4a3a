"""One choice on its way out: step events become text, stop strings end it, tokens and drafts are counted.

The edge's own state of a choice, from the first event to the last. Knows events and tokenizers, but no JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from engine.errors import TargetLostError
from engine.events import ABORT, STOP, RequestStats, SourceCounts, StepEvent, TokenLogprob
from engine.request import Request
from engine.text import Detokenizer, StopMatcher

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class Piece(msgspec.Struct, frozen=True, gc=False):
    """What one step adds to a choice."""

    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None  # stop id or stop string
    logprobs: list[TokenLogprob] | None = None
    offsets: list[int] | None = None  # where each token's text begins in the choice's text, characters

    @staticmethod
    def join(pieces: Sequence[Piece]) -> Piece:
        """All pieces of a choice as one."""
        last = pieces[-1]
        return Piece(
            "".join(p.text for p in pieces),
            [token for p in pieces for token in p.token_ids],
            last.finish_reason,
            last.stop_reason,
            None if last.logprobs is None else [entry for p in pieces for entry in p.logprobs or ()],
            None if last.offsets is None else [offset for p in pieces for offset in p.offsets or ()],
        )


class Choice:
    """Assembles the text of one choice.

    Args:
        index: of the choice in the response: prompt * n + choice.
        request: what the backend runs for it.
        tokenizer: of the model.
        eos_ids: ids that end a text without being a stop the client asked for.
    """

    def __init__(
        self, index: int, request: Request, tokenizer: PreTrainedTokenizerFast, eos_ids: tuple[int, ...]
    ) -> None:
        self.index = index
        self.request = request
        self.n_tokens = 0  # generated tokens that count, a terminating stop id included
        self.stats: RequestStats | None = None  # from the last event; missing when a stop string ended the text
        self._eos_ids = eos_ids
        self._detokenizer = Detokenizer(tokenizer)
        self._matcher = StopMatcher(request.params.stop) if request.params.stop else None
        self._by_token = self._matcher is not None or request.params.logprobs is not None
        self._n_chars = 0  # characters the detokenizer gave out
        self._step_tokens: list[int] = []
        self._drafts: dict[str, SourceCounts] | None = {}

    def feed(self, event: StepEvent) -> Piece:
        """The step's contribution. The choice is complete when it has a ``finish_reason``.

        Raises:
            TargetLostError: the engine gave the request up.
        """
        if event.finish_reason == ABORT:
            raise TargetLostError("the request was aborted by the server; send it again")
        piece = self._by_tokens(event) if self._by_token else self._at_once(event)
        self._count(event, len(piece.token_ids))
        return piece

    def final_stats(self) -> RequestStats | None:
        """The engine's figures, or what the edge saw if it ended the text itself; None if it was not told enough."""
        if self.stats is not None or self._drafts is None:
            return self.stats
        return RequestStats(
            prompt_tokens=len(self.request.prompt),
            target_forwards=len(self._step_tokens),
            drafted_tokens=sum(counts.drafted for counts in self._drafts.values()),
            accepted_tokens=sum(counts.accepted for counts in self._drafts.values()),
            step_tokens=self._step_tokens,
            by_source=self._drafts,
        )

    def _at_once(self, event: StepEvent) -> Piece:
        """The common case: nobody cares which token which character comes from."""
        ids, finish = event.token_ids, event.finish_reason
        if finish is None:
            return Piece(self._detokenizer.push(ids), ids)
        shown = ids[:-1] if finish == STOP else ids  # the stop id is no text
        text = self._detokenizer.push(shown) + self._detokenizer.flush()
        return Piece(text, ids, finish, self._visible_reason(event))

    def _by_tokens(self, event: StepEvent) -> Piece:
        """Token by token: for stop strings, and to know where each token's text begins."""
        ids, finish = event.token_ids, event.finish_reason
        reason: int | str | None = self._visible_reason(event)
        text, offsets = "", []
        for token in ids[:-1] if finish == STOP else ids:
            offsets.append(self._n_chars)
            text += self._match(self._detokenizer.push((token,)), 1)
        if finish is not None:
            offsets += [self._n_chars] * (len(ids) - len(offsets))
            text += self._match(self._detokenizer.flush(), 0)
            text += self._matcher.flush() if self._matcher is not None else ""
        if self._matcher is not None and self._matcher.matched is not None:
            finish, reason = STOP, self._matcher.matched
            ids = ids[: self._matcher.tokens - self.n_tokens]
        logprobs = None if event.logprobs is None else event.logprobs[: len(ids)]
        return Piece(text, ids, finish, reason, logprobs, offsets[: len(ids)])

    def _match(self, text: str, n_tokens: int) -> str:
        self._n_chars += len(text)
        return text if self._matcher is None else self._matcher.push(text, n_tokens)

    def _visible_reason(self, event: StepEvent) -> int | None:
        """A stop id the client asked for; the end of text is no news."""
        return None if event.stop_reason in self._eos_ids else event.stop_reason

    def _count(self, event: StepEvent, used: int) -> None:
        if self.n_tokens:  # the first event is the prefill's
            self._step_tokens.append(used)
            if event.drafts is None:
                self._drafts = None
            elif self._drafts is not None:
                for name, counts in event.drafts.items():
                    self._drafts[name] = counts.plus(self._drafts[name]) if name in self._drafts else counts
        self.n_tokens += used
        self.stats = event.stats
