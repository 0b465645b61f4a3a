"""Answers that outlive their connection: responses in the background, and streams that can be resumed.

The answer keeper has their tokens, and the ingress that serves a reader writes them, always from the first token.
Events depend on tokens alone, so all ingresses write the same ones.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.access.caller import Caller, caller_of
from app.access.gate import Visit
from app.api.answers.completions import Envelope
from app.api.answers.kept import AnswerRestorer, GenerationBody, WrittenAnswer
from app.api.answers.responses import QUEUED, ResponseWriter
from app.api.choice import CompletionChoice
from app.api.errors import status_error
from app.api.generation import AnswerWriter, Generation
from app.api.requests.bodies import Bodies
from app.api.requests.queries import read_flag, read_number, read_query
from app.api.requests.responses import ResponsesRequest
from app.api.service import StepStream
from app.api.streaming import EventStream, with_comments
from app.telemetry.access_log import AccessLog
from app.telemetry.exchange import current
from deployments.answers.client import AnswerKeeperClient
from deployments.answers.messages import KeptAnswer, NewAnswer
from deployments.submission.protocol import AnswerReference
from engine.errors import AnswerCancelledError, AnswerNotFoundError, RequestError, SpectraError

RESPONSE = "resp_"  # the ids of responses begin with it
MAX_ID_CHARS = 128


class KeptAnswers:
    """Creates kept answers, and serves the endpoints that read, cancel and delete them.

    Args:
        keeper: has the answers.
        restorer: writes them.
        bodies: its threads restore long ones.
        log: an answer has a line at its end, apart from those of the requests that read it.
        method: returns the method of requests that name none.
    """

    def __init__(
        self,
        keeper: AnswerKeeperClient,
        restorer: AnswerRestorer,
        bodies: Bodies,
        log: AccessLog,
        method: Callable[[], str],
    ) -> None:
        self._keeper = keeper
        self._restorer = restorer
        self._bodies = bodies
        self._log = log
        self._method = method
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
        record = self._restorer.record(body, content, envelope, choices)
        new = NewAnswer(
            id=envelope.id,
            tenant=caller.tenant,
            is_background=isinstance(body, ResponsesRequest),
            requests=[choice.request for choice in choices],
            edge=msgspec.msgpack.encode(record),
        )
        try:
            await self._keeper.create(new)
        except SpectraError:
            for choice in choices:
                choice.is_refused = True  # and the caller's key is not charged
            raise
        exchange = current()
        exchange.figures = exchange.usage = None  # the answer's own line has them
        settle = None if visit is None else visit.hand_over()
        account = self._account(self._restorer.write(new, record, body), caller, exchange.request_id, settle)
        self._accounts.add(task := asyncio.get_running_loop().create_task(account))
        task.add_done_callback(self._accounts.discard)
        answer = self._restorer.write(new, record, body)
        if not body.stream:
            return json_response(answer.response_writer().state(QUEUED))
        if isinstance(body, ResponsesRequest):
            return self._stream(answer, answer.response_writer())
        return self._stream(answer, answer.stream_writer("", ""))

    async def response(self, request: Request) -> Response:
        """GET /v1/responses/{id}: the response so far, or its events if ``stream`` is true."""
        query = read_query(request, "stream", "starting_after", "include", "include[]", "include_obfuscation")
        is_stream, after = read_flag(query, "stream"), read_number(query, "starting_after")
        if read_flag(query, "include_obfuscation"):
            message = "include_obfuscation is true; events are not padded, leave it out"
            raise RequestError(message, "include_obfuscation")
        if after is not None and not is_stream:
            raise RequestError("starting_after needs stream to be true", "starting_after")
        kept = await self._find(request, is_response=True, with_events=not is_stream)
        if not is_stream:
            return await self._snapshot(kept)
        answer = await self._restore(kept)
        return self._stream(answer, answer.response_writer(-1 if after is None else after))

    async def cancel_response(self, request: Request) -> Response:
        """POST /v1/responses/{id}/cancel: stops the generation; returns the response, also if it has ended before."""
        answer_id = _read_id(request, is_response=True)
        kept = await self._keeper.cancel(answer_id, caller_of(request.scope).tenant)
        if kept is None:
            raise _not_found(answer_id)
        return await self._snapshot(kept)

    async def stream(self, request: Request) -> Response:
        """GET /v1/streams/{id}: the events after those that the client has, and all that follow."""
        query = read_query(request, "after")
        header = request.headers.get("Last-Event-ID")  # newer than the address, which a browser keeps
        answer = await self._restore(await self._find(request, is_response=False))
        after, param = (query.get("after", ""), "after") if header is None else (header, "Last-Event-ID")
        return self._stream(answer, answer.stream_writer(after, param))

    async def delete_response(self, request: Request) -> Response:
        """DELETE /v1/responses/{id}: stops and deletes it."""
        return await self._delete(request, "response")

    async def delete_stream(self, request: Request) -> Response:
        """DELETE /v1/streams/{id}: stops and deletes it."""
        return await self._delete(request, "stream")

    async def _delete(self, request: Request, kind: str) -> Response:
        answer_id = _read_id(request, is_response=kind == "response")
        if not await self._keeper.delete(answer_id, caller_of(request.scope).tenant):
            raise _not_found(answer_id)
        return json_response({"id": answer_id, "object": kind, "deleted": True})

    async def _find(self, request: Request, *, is_response: bool, with_events: bool = False) -> KeptAnswer:
        """The answer that the path names; raises AnswerNotFoundError, also for another tenant's."""
        answer_id = _read_id(request, is_response=is_response)
        kept = await self._keeper.read(answer_id, caller_of(request.scope).tenant, with_events)
        if kept is None:
            raise _not_found(answer_id)
        return kept

    async def _restore(self, kept: KeptAnswer) -> WrittenAnswer:
        return await self._bodies.run(len(kept.record), self._restorer.restore, kept)

    async def _snapshot(self, kept: KeptAnswer) -> Response:
        """The response as far as its tokens are there."""
        weight = len(kept.record) + sum(map(len, kept.events[0]))
        content, is_stopped = await self._bodies.run(weight, self._restorer.snapshot, kept)
        if is_stopped:  # and the ingress that would have found its stop string is gone
            new = kept.answer
            await self._keeper.finish(new.id, new.tenant, 0)
        return Response(content, media_type="application/json")

    def _stream(self, answer: WrittenAnswer, writer: AnswerWriter) -> EventStream:
        return EventStream(with_comments(_write_events(writer, self._generation(answer, is_reader=True))))

    def _generation(self, answer: WrittenAnswer, *, is_reader: bool) -> Generation:
        """The answer's events, by token for a reader."""
        request_id = current().request_id

        async def follow(choice: CompletionChoice) -> StepStream:
            reference = AnswerReference(answer.id, answer.tenant, choice.index, 0, is_reader, request_id)
            return self._keeper.follow(reference)

        async def finish(choice: CompletionChoice) -> None:
            with contextlib.suppress(SpectraError):  # the text is complete; the limits end what is still generated
                await self._keeper.finish(answer.id, answer.tenant, choice.index)

        return Generation(follow, answer.choices, by_token=is_reader, on_stop=finish)

    async def _account(
        self, answer: WrittenAnswer, caller: Caller, request_id: str, settle: Callable[[int], None] | None
    ) -> None:
        """Follow an answer to its end; then log and count it, and give back the tokens that it did not use."""
        exchange = self._log.begin("CALL", "kept_answer", request_id)
        exchange.tenant = exchange.account = caller.tenant
        exchange.key_id = caller.key_id
        generation = self._generation(answer, is_reader=False)
        exchange.figures = partial(generation.figures, answer.envelope.body.model, self._method(), exchange.began)
        exchange.usage = generation.usage
        try:
            async with aclosing(generation.pieces()) as pieces:
                async for _ in pieces:
                    pass
        except (AnswerCancelledError, AnswerNotFoundError):
            exchange.is_client_gone = True
            for choice in answer.choices:
                choice.is_refused = False  # its prompt may have been read
        except SpectraError as error:
            status_error(error)
        finally:
            if settle is not None:
                settle(generation.used_tokens())
            self._log.end(exchange)


async def _write_events(writer: AnswerWriter, generation: Generation) -> AsyncGenerator[bytes, None]:
    """The events of an answer; a response in the background has an id before it has a text."""
    if isinstance(writer, ResponseWriter) and (first := writer.begin()):
        yield first
    async with aclosing(generation.event_stream(writer)) as events:
        async for event in events:
            yield event


def _read_id(request: Request, *, is_response: bool) -> str:
    """The id in the path; raises AnswerNotFoundError for an id of the other kind of answer."""
    answer_id = str(request.path_params["id"])[:MAX_ID_CHARS]
    if answer_id.startswith(RESPONSE) != is_response:
        raise _not_found(answer_id)
    return answer_id


def _not_found(answer_id: str) -> AnswerNotFoundError:
    return AnswerNotFoundError(f"no answer {answer_id!r} is kept here: it has expired, was deleted, or never existed")


def json_response(fields: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(fields), status, media_type="application/json")
