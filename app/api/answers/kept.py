"""Writes kept answers again: from the record of the ingress that created them, and the events that the keeper has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from app.api.answers.completions import Envelope
from app.api.answers.logprobs import TokenTexts
from app.api.answers.positions import ResumableWriter, read_positions
from app.api.answers.responses import FAILED, ResponseWriter
from app.api.choice import ChoiceDelta, CompletionChoice
from app.api.requests.responses import ResponsesRequest
from app.api.requests.schemas import ChatCompletionRequest, CompletionRequest
from app.api.tools.parts import AnswerForm
from deployments.answers.messages import COMPLETED, KeptAnswer, NewAnswer
from deployments.submission.messages import ModelCard
from engine.errors import ModelChangedError, SpectraError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

GenerationBody = ChatCompletionRequest | CompletionRequest | ResponsesRequest
SCHEMAS: dict[str, type[GenerationBody]] = {
    schema.endpoint: schema for schema in (ChatCompletionRequest, CompletionRequest, ResponsesRequest)
}


class EdgeRecord(msgspec.Struct, frozen=True):
    """What an ingress needs to write an answer again."""

    endpoint: str  # a key of ``SCHEMAS``
    body: bytes  # JSON, as the client sent it
    created: int  # seconds since 1970
    seed: int
    fingerprint: str | None
    tokenizer: str  # hash of the one that the tokens are of
    forms: list[AnswerForm]  # by choice


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """A kept answer with new choices, which can be fed with its events once."""

    id: str
    tenant: str
    body: GenerationBody
    envelope: Envelope
    choices: list[CompletionChoice]
    texts: TokenTexts
    ended: float | None = None  # seconds since 1970

    def stream_writer(self, after: str, param: str) -> ResumableWriter:
        """A writer of the events after the position ``after``, which the client gave as ``param``."""
        positions = read_positions(after, len(self.choices), param)
        return ResumableWriter(self.envelope, self.choices, self.texts, positions)

    def response_writer(self, after: int = -1) -> ResponseWriter:
        """A writer of a response, or of its events after the number ``after``."""
        assert isinstance(self.body, ResponsesRequest)
        return ResponseWriter(self.body, self.envelope, self.choices[0], self.texts, after, self.ended)


class AnswerRestorer:
    """Restores answers from what the keeper has.

    Args:
        tokenizer, texts: of the model.
        card: returns that of the model which is served now.
        parse: checks a body.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        texts: TokenTexts,
        card: Callable[[], ModelCard],
        parse: Callable[[type[GenerationBody], bytes], Any],
    ) -> None:
        self._tokenizer = tokenizer
        self._texts = texts
        self._card = card
        self._parse = parse

    def record(
        self, body: GenerationBody, content: bytes, envelope: Envelope, choices: Sequence[CompletionChoice]
    ) -> EdgeRecord:
        """The record of a new answer; ``content`` is the JSON of ``body``."""
        return EdgeRecord(
            body.endpoint,
            content,
            envelope.created,
            envelope.seed,
            envelope.system_fingerprint,
            self._card().identity.tokenizer,
            [choice.form for choice in choices],
        )

    def write(
        self, new: NewAnswer, record: EdgeRecord, body: GenerationBody, ended: float | None = None
    ) -> WrittenAnswer:
        chat = body.chat if isinstance(body, ResponsesRequest) else body
        envelope = Envelope(new.id, record.created, chat, record.seed, record.fingerprint)
        card, pairs = self._card(), enumerate(zip(new.requests, record.forms, strict=True))
        choices = [CompletionChoice(i, request, self._tokenizer, card, form) for i, (request, form) in pairs]
        return WrittenAnswer(new.id, new.tenant, body, envelope, choices, self._texts, ended)

    def restore(self, kept: KeptAnswer) -> WrittenAnswer:
        """The answer to a reader; raises ModelChangedError if its tokens are of another tokenizer than this edge's."""
        new = kept.answer
        record = msgspec.msgpack.decode(new.edge, type=EdgeRecord)
        if record.tokenizer != self._card().identity.tokenizer:
            raise ModelChangedError("the answer is of a model with another tokenizer, which is no longer served")
        return self.write(new, record, self._parse(SCHEMAS[record.endpoint], record.body), kept.ended)

    def snapshot(self, kept: KeptAnswer) -> tuple[bytes, bool]:
        """JSON of a response as far as its tokens are there, and whether a stop string ended it already."""
        answer = self.restore(kept)
        (choice,), writer, pieces = answer.choices, answer.response_writer(), list[ChoiceDelta]()
        error: Exception | None = None if kept.failure is None else kept.failure.exception()
        status: str = kept.status
        try:
            for event in kept.decode_events(0):
                pieces.append(choice.feed(event))
                if choice.finish_reason is not None:
                    break
        except SpectraError as failure:
            error, status = failure, FAILED
        piece = ChoiceDelta.join(pieces) if pieces else None
        if piece is not None and piece.finish_reason is not None:
            return writer.whole([(choice, piece)]), kept.status != COMPLETED
        return writer.unfinished(piece, status, error), False
