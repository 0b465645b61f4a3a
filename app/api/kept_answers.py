"""Answers that outlive their connection: responses in the background, and streams that can be resumed.

The answer keeper has their tokens; this module writes them, from the first token on each time. An answer's events
depend on its tokens alone, so every ingress writes the same ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.access.caller import Caller, caller_of
from app.access.gate import Visit
from app.api.answers.completions import Envelope
from app.api.answers.logprobs import TokenTexts
from app.api.answers.positions import ResumableWriter, read_positions
from app.api.answers.responses import ResponseWriter
from app.api.choice import ChoiceDelta, CompletionChoice
from app.api.errors import status_error
from app.api.generation import Generation
from app.api.requests.queries import read_flag, read_number, read_query
from app.api.requests.responses import ResponsesRequest
from app.api.requests.schemas import ChatCompletionRequest, CompletionRequest
from app.api.service import StepStream
from app.api.streaming import EventStream, with_comments
from app.api.tools.parts import AnswerForm
from app.telemetry.access_log import AccessLog
from app.telemetry.exchange import current
from deployments.answers.client import AnswerKeeperClient
from deployments.answers.messages import COMPLETED, QUEUED, KeptAnswer, NewAnswer
from deployments.submission.messages import ModelCard
from deployments.submission.protocol import AnswerReference
from engine.errors import AnswerCancelledError, AnswerNotFoundError, RequestError, SpectraError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

GenerationBody = ChatCompletionRequest | CompletionRequest | ResponsesRequest
SCHEMAS: dict[str, type[GenerationBody]] = {
    schema.endpoint: schema for schema in (ChatCompletionRequest, CompletionRequest, ResponsesRequest)
}
MAX_ID_CHARS = 128
Parse = Callable[[type[GenerationBody], bytes], Coroutine[Any, Any, GenerationBody]]


class EdgeRecord(msgspec.Struct, frozen=True):
    """What an ingress needs to write an answer again."""

    endpoint: str  # a key of ``SCHEMAS``
    body: bytes  # JSON, as the client sent it
    created: int  # seconds since 1970
    seed: int
    fingerprint: str | None
    forms: list[AnswerForm]  # by choice


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """A kept answer, and new objects to write it with."""

    kept: KeptAnswer
    body: GenerationBody
    envelope: Envelope
    choices: list[CompletionChoice]


class KeptAnswers:
    """Creates kept answers, and serves the endpoints that read, cancel and delete them.

    Args:
        keeper: has the answers.
        parse: checks a body, in a thread if it is long.
        tokenizer, texts: of the model.
        card: returns that of the model which is served now.
        log: an answer has a line at its end, apart from those of the requests that read it.
    """

    def __init__(
        self,
        keeper: AnswerKeeperClient,
        parse: Parse,
        tokenizer: PreTrainedTokenizerFast,
        texts: TokenTexts,
        card: Callable[[], ModelCard],
        log: AccessLog,
    ) -> None:
        self._keeper = keeper
        self._parse = parse
        self._tokenizer = tokenizer
        self._texts = texts
        self._card = card
        self._log = log
        self._accounts: set[asyncio.Task[None]] = set()  # the loop keeps only weak references

    async def begin(
        self,
        body: GenerationBody,
        content: bytes,
        envelope: Envelope,
        choices: Sequence[CompletionChoice],
        caller: Caller,
        visit: Visit | None,
    ) -> Response:
        """Have the answer generated; returns its stream, or a response in the background without its text.

        Raises:
            OverloadedError: the caller's tenant has too many answers.
        """
        record = EdgeRecord(
            body.endpoint,
            content,
            envelope.created,
            envelope.seed,
            envelope.system_fingerprint,
            [choice.form for choice in choices],
        )
        new = NewAnswer(
            id=envelope.id,
            tenant=caller.tenant,
            is_background=isinstance(body, ResponsesRequest),
            requests=[choice.request for choice in choices],
            edge=msgspec.msgpack.encode(record),
            created=time.time(),
        )
        try:
            await self._keeper.create(new)
        except SpectraError:
            for choice in choices:
                choice.is_refused = True  # and the caller's key is not charged
            raise
        exchange = current()
        exchange.figures = exchange.usage = None  # the answer's own line has them
        answer = self._written(KeptAnswer(answer=new, status=QUEUED), record, body)
        give_back = _keep if visit is None else visit.hand_over()
        account = self._account(self._written(answer.kept, record, body), caller, exchange.request_id, give_back)
        self._accounts.add(task := asyncio.get_running_loop().create_task(account))
        task.add_done_callback(self._accounts.discard)
        if body.stream:
            return self._stream(answer)
        return json_response(self._response_writer(answer).state(QUEUED))

    async def response(self, request: Request) -> Response:
        """GET /v1/responses/{id}: the response so far, or its events if ``stream`` is true."""
        query = read_query(request, "stream", "starting_after", "include", "include[]", "include_obfuscation")
        is_stream = read_flag(query, "stream")
        if read_flag(query, "include_obfuscation"):
            raise RequestError(
                "include_obfuscation is true; events are not padded, leave it out", "include_obfuscation"
            )
        if "starting_after" in query and not is_stream:
            raise RequestError("starting_after needs stream to be true", "starting_after")
        after = read_number(query, "starting_after")
        answer = await self._find(request, is_response=True, with_events=not is_stream)
        return self._stream(answer, after) if is_stream else await self._snapshot(answer)

    async def cancel_response(self, request: Request) -> Response:
        """POST /v1/responses/{id}/cancel: stops the generation; returns the response, also if it has ended before."""
        answer = await self._find(request, is_response=True)
        kept = answer.kept.answer
        if await self._keeper.cancel(kept.id, kept.tenant) is None:
            raise _not_found(kept.id)
        return await self._snapshot(await self._find(request, is_response=True, with_events=True))

    async def delete_response(self, request: Request) -> Response:
        """DELETE /v1/responses/{id}: stops and deletes it."""
        return await self._delete(request, "response", is_response=True)

    async def stream(self, request: Request) -> Response:
        """GET /v1/streams/{id}: the events after those that the client has, and all that follow."""
        query = read_query(request, "after")
        header = request.headers.get("Last-Event-ID")  # newer than the address, which a browser keeps
        answer = await self._find(request, is_response=False)
        given = query.get("after", "") if header is None else header
        return self._stream(answer, given, "after" if header is None else "Last-Event-ID")

    async def delete_stream(self, request: Request) -> Response:
        """DELETE /v1/streams/{id}: stops and deletes it."""
        return await self._delete(request, "stream", is_response=False)

    async def _delete(self, request: Request, kind: str, *, is_response: bool) -> Response:
        kept = (await self._find(request, is_response=is_response)).kept.answer
        if not await self._keeper.delete(kept.id, kept.tenant):
            raise _not_found(kept.id)
        return json_response({"id": kept.id, "object": kind, "deleted": True})

    async def _find(self, request: Request, *, is_response: bool, with_events: bool = False) -> WrittenAnswer:
        """The answer that the path names; raises AnswerNotFoundError, also for another tenant's."""
        answer_id = request.path_params["id"][:MAX_ID_CHARS]
        kept = await self._keeper.read(answer_id, caller_of(request.scope).tenant, with_events)
        if kept is None or kept.answer.is_background != is_response:
            raise _not_found(answer_id)
        record = msgspec.msgpack.decode(kept.answer.edge, type=EdgeRecord)
        return self._written(kept, record, await self._parse(SCHEMAS[record.endpoint], record.body))

    def _written(self, kept: KeptAnswer, record: EdgeRecord, body: GenerationBody) -> WrittenAnswer:
        chat = body.chat if isinstance(body, ResponsesRequest) else body
        envelope = Envelope(kept.answer.id, record.created, chat, record.seed, record.fingerprint)
        pairs = zip(kept.answer.requests, record.forms, strict=True)
        card = self._card()
        choices = [CompletionChoice(i, one, self._tokenizer, card, form) for i, (one, form) in enumerate(pairs)]
        return WrittenAnswer(kept, body, envelope, choices)

    def _response_writer(self, answer: WrittenAnswer, after: int = -1) -> ResponseWriter:
        body = answer.body
        assert isinstance(body, ResponsesRequest)
        return ResponseWriter(body, answer.envelope, answer.choices[0], self._texts, after, answer.kept.ended)

    def _stream(self, answer: WrittenAnswer, after: str | int = "", param: str = "") -> EventStream:
        generation = self._generation(answer, by_token=True)
        if isinstance(after, int) or isinstance(answer.body, ResponsesRequest):
            writer = self._response_writer(answer, after if isinstance(after, int) else -1)
            return EventStream(with_comments(_begun(writer, generation)))
        positions = read_positions(after, len(answer.choices), param)
        resumed = ResumableWriter(answer.envelope, answer.choices, self._texts, positions)
        return EventStream(with_comments(generation.event_stream(resumed)))

    async def _snapshot(self, answer: WrittenAnswer) -> Response:
        """The response as far as its tokens are there."""
        kept, (choice,) = answer.kept, answer.choices
        pieces: list[ChoiceDelta] = []
        error: Exception | None = None if kept.failure is None else kept.failure.exception()
        try:
            for event in kept.events[0]:
                pieces.append(choice.feed(event))
                if choice.finish_reason is not None:
                    break
        except SpectraError as failure:
            error = failure
        writer, piece = self._response_writer(answer), ChoiceDelta.join(pieces) if pieces else None
        if piece is not None and piece.finish_reason is not None:
            if kept.status != COMPLETED:  # the ingress that would have found its stop string is gone
                await self._keeper.finish(kept.answer.id, kept.answer.tenant, 0)
            return Response(writer.whole([(choice, piece)]), media_type="application/json")
        return Response(writer.unfinished(piece, kept.status, error), media_type="application/json")

    def _generation(self, answer: WrittenAnswer, *, by_token: bool) -> Generation:
        """The answer's events, for a client's stream by token, for its account otherwise."""
        new, request_id = answer.kept.answer, current().request_id

        async def follow(choice: CompletionChoice) -> StepStream:
            reference = AnswerReference(new.id, new.tenant, choice.index, 0, by_token, request_id)
            return self._keeper.follow(reference)

        async def finish(choice: CompletionChoice) -> None:
            await self._keeper.finish(new.id, new.tenant, choice.index)

        return Generation(follow, answer.choices, by_token=by_token, on_stop=finish)

    async def _account(
        self, answer: WrittenAnswer, caller: Caller, request_id: str, give_back: Callable[[int], None]
    ) -> None:
        """Follow an answer to its end; then log and count it, and give back the tokens that it did not use."""
        exchange = self._log.begin("CALL", "kept_answer", request_id)
        exchange.tenant = exchange.account = caller.tenant
        exchange.key_id = caller.key_id
        generation = self._generation(answer, by_token=False)
        exchange.figures = partial(generation.figures, answer.envelope.body.model, self._card().method, exchange.began)
        exchange.usage = generation.usage
        try:
            async with aclosing(generation.pieces()) as pieces:
                async for _ in pieces:
                    pass
        except (AnswerCancelledError, AnswerNotFoundError):
            exchange.is_client_gone = True
        except SpectraError as error:
            status_error(error)
        finally:
            give_back(generation.used_tokens())
            self._log.end(exchange)


async def _begun(writer: ResponseWriter, generation: Generation) -> AsyncGenerator[bytes, None]:
    """The events of a response in the background: its id comes at once, however long it waits in the queue."""
    if first := writer.begin():
        yield first
    async with aclosing(generation.event_stream(writer)) as events:
        async for event in events:
            yield event


def _keep(used: int) -> None:
    """No key limits the caller, so there is nothing to give back."""


def _not_found(answer_id: str) -> AnswerNotFoundError:
    return AnswerNotFoundError(f"no answer {answer_id!r} is kept here: it has expired, was deleted, or never existed")


def json_response(fields: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(fields), status, media_type="application/json")
