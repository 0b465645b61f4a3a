"""OpenAI's endpoints and ours, over a `Backend`."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING

from fastapi import Request
from starlette.responses import Response

from app.access.caller import Caller, StatusError, caller_of
from app.access.gate import visit_of
from app.api.answers.completions import CompletionWriter, Envelope
from app.api.answers.kept import AnswerRestorer, GenerationBody
from app.api.answers.logprobs import TokenTexts
from app.api.answers.responses import ResponseWriter
from app.api.choice import CompletionChoice
from app.api.generation import AnswerWriter, Generation
from app.api.kept_answers import RESPONSE, KeptAnswers, json_response
from app.api.observed import request_fields
from app.api.requests.bodies import Bodies
from app.api.requests.convert import Converter
from app.api.requests.parsing import Schema, parse
from app.api.requests.responses import ResponsesRequest, with_response_names
from app.api.requests.schemas import (
    MAX_CHOICES,
    Body,
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from app.api.service import Backend, ServiceSettings
from app.api.streaming import EventStream, run_while_connected
from app.telemetry.access_log import AccessLog
from app.telemetry.exchange import current
from app.telemetry.metrics import EdgeMetrics
from deployments.answers.client import AnswerKeeperClient
from deployments.observability.traces import Tracer
from deployments.submission.messages import Health, ModelCard
from engine.errors import RequestError, SpectraError
from engine.grammar.compiler import Grammars
from engine.grammar.grammar import Grammar, GrammarError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ID_PREFIXES = {ChatCompletionRequest: "chatcmpl-", CompletionRequest: "cmpl-", ResponsesRequest: RESPONSE}
PREPARE_COST = 4  # rendering and tokenising a byte of a body takes as long as parsing so many
logger = logging.getLogger("spectra.api")


class Api:
    """The endpoints; one instance per process, without state between requests."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: PreTrainedTokenizerFast,
        settings: ServiceSettings,
        tracer: Tracer | None = None,
        keeper: AnswerKeeperClient | None = None,
    ) -> None:
        self._backend = backend
        self._tokenizer = tokenizer
        self._settings = settings
        self._latest = Converter(tokenizer, backend.model_card, settings)
        self._bodies = Bodies(settings.max_body_bytes)
        self._texts = TokenTexts(tokenizer)
        card = backend.model_card
        self._grammars = Grammars(lambda: str(tokenizer.backend_tokenizer.to_str()), card.eos_ids, card.vocab_size)
        metrics = EdgeMetrics(backend.counted, card.name, card.max_model_len)
        self.access_log = log = AccessLog(request_fields(), metrics, settings.access_log, tracer)
        self.kept: KeptAnswers | None = None  # None: this server keeps no answers
        if keeper is not None:
            restorer = AnswerRestorer(tokenizer, self._texts, lambda: self._card, self._parse_now)
            self.kept = KeptAnswers(keeper, restorer, self._bodies, log, lambda: self._card.method)

    @property
    def _card(self) -> ModelCard:
        return self._backend.model_card

    @property
    def _converter(self) -> Converter:
        """For the model that is served now; an older converter names the earlier model in its requests."""
        if self._latest.card is not self._card:
            self._latest = self._latest.for_model(self._card)
        return self._latest

    @property
    def model_name(self) -> str:
        return self._card.name

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize: ids of a prompt, or of messages under the chat template."""
        async with self._bodies.read(request) as content:
            body = await self._parse(TokenizeRequest, content, max_prompts=0)
            self._check_model(body.model)
            ids = await self._bodies.run(PREPARE_COST * len(content), self._converter.tokenize, body)
            return json_response({"count": len(ids), "max_model_len": self._card.max_model_len, "tokens": ids})

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize: text of ids, special tokens included."""
        async with self._bodies.read(request) as content:
            body = await self._parse(DetokenizeRequest, content, max_prompts=1)
            self._check_model(body.model)
            return json_response(
                {"prompt": await self._bodies.run(len(body.tokens), self._converter.decode, body.tokens)}
            )

    async def models(self, request: Request) -> Response:
        names = (self._card.name, *self._card.aliases)
        caller = caller_of(request.scope)
        return json_response({"object": "list", "data": [_model_fields(self._card, name, caller) for name in names]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/{id}; names may contain slashes."""
        name = request.path_params["name"]
        self._check_model(name)
        return json_response(_model_fields(self._card, name, caller_of(request.scope)))

    async def health(self, request: Request) -> Response:
        """GET /health: 200 while this process lives; the body reports the state of the server."""
        try:
            health = await self._backend.health()
        except Exception as error:
            logger.warning("the backend does not answer", exc_info=error)
            health = Health(ok=False, reason="the backend does not answer")
        return json_response({"status": "ok" if health.ok else "unavailable", "reason": health.reason, **health.detail})

    async def ready(self, request: Request) -> Response:
        """GET /ready: 200 only if a request sent now would be served, else 503 with the reason."""
        try:
            await self._backend.check_ready()
        except SpectraError as error:
            return json_response({"status": "unavailable", "reason": str(error)}, 503)
        return json_response({"status": "ok", "reason": ""})

    async def ping(self, request: Request) -> Response:
        return Response()

    async def metrics(self, request: Request) -> Response:
        return Response(await self._backend.metrics_text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def version(self, request: Request) -> Response:
        return json_response({"version": self._settings.version})

    async def answer(self, body: GenerationBody, size: int, caller: Caller) -> bytes:
        """The whole response to a body of about ``size`` bytes of JSON."""
        generation, envelope = await self._prepare(body, size, caller)
        return await generation.whole_body(self._writer(body, envelope, generation), self._bodies)

    async def events(self, body: GenerationBody, size: int, caller: Caller) -> AsyncGenerator[bytes, None]:
        """The response as server-sent events; its reader must close the generator."""
        generation, envelope = await self._prepare(body, size, caller)
        return generation.event_stream(self._writer(body, envelope, generation))

    async def generate(self, request: Request, schema: type[GenerationBody]) -> Response:
        """POST /v1/chat/completions, /v1/completions and /v1/responses, whose bodies ``schema`` describes."""
        async with self._bodies.read(request) as content:
            body = await self._parse(schema, content)
            caller, visit = caller_of(request.scope), visit_of(request.scope)
            generation, envelope = await self._prepare(body, len(content), caller)
            if visit is not None:
                visit.reserve(generation.most_tokens, generation.used_tokens)
            if body.is_kept and self.kept is not None:
                return await self.kept.begin(body, content, envelope, generation.choices, caller, visit)
        writer = self._writer(body, envelope, generation)
        if body.stream:
            return EventStream(generation.event_stream(writer))
        answer = await run_while_connected(request.receive, generation.whole_body(writer, self._bodies))
        if visit is not None:
            visit.settle()
        return Response(answer, media_type="application/json")

    async def _parse(self, schema: type[Schema], content: bytes, max_prompts: int = MAX_CHOICES) -> Schema:
        return await self._bodies.run(len(content), self._parse_now, schema, content, max_prompts)

    def _parse_now(self, schema: type[Schema], content: bytes, max_prompts: int = MAX_CHOICES) -> Schema:
        return parse(schema, content, max_prompts * self._card.max_model_len)

    async def _prepare(self, body: GenerationBody, size: int, caller: Caller) -> tuple[Generation, Envelope]:
        self._check_model(body.model)
        if body.is_kept and self.kept is None:
            field = "background" if isinstance(body, ResponsesRequest) else "stream_options.resumable"
            raise RequestError(f"{field} is true; this server keeps no answers (answers_per_tenant is 0)", field)
        # The id of a kept answer is what an anonymous client reads it with, so no client may choose or guess it.
        response_id = ID_PREFIXES[type(body)] + (secrets.token_hex(16) if body.is_kept else current().request_id)
        if not isinstance(body, ResponsesRequest):
            return await self._begin(body, size, response_id, caller)
        try:
            return await self._begin(body.chat, size, response_id, caller)
        except RequestError as error:
            raise with_response_names(error) from None

    def _writer(self, body: GenerationBody, envelope: Envelope, generation: Generation) -> AnswerWriter:
        if isinstance(body, ResponsesRequest):
            return ResponseWriter(body, envelope, generation.choices[0], self._texts)
        return CompletionWriter(envelope, generation.choices, self._texts)

    async def _begin(self, body: Body, size: int, response_id: str, caller: Caller) -> tuple[Generation, Envelope]:
        exchange, converter = current(), self._converter
        if self._settings.log_prompts:
            exchange.prompt = body.text_for_log
        cost = PREPARE_COST * size
        requests, seed = await self._bodies.run(cost, converter.prepare, body, response_id, caller)
        first = requests[0][0]
        grammar = first.params.grammar
        if grammar is not None:
            await _check_grammar(self._grammars, body, grammar)
        choices = [
            CompletionChoice(i, request, self._tokenizer, converter.card, form)
            for i, (request, form) in enumerate(requests)
        ]
        exchange.tenant = first.tenant
        generation = Generation(lambda choice: self._backend.submit(choice.request), choices)
        exchange.figures = partial(generation.figures, body.model, self._card.method, exchange.began)
        exchange.usage = generation.usage
        return generation, Envelope(response_id, int(time.time()), body, seed, converter.card.fingerprint)

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._card.name and name not in self._card.aliases:
            message = f"the model {name[:128]!r} is not served here; GET /v1/models lists the served models"
            raise StatusError(404, message, code="model_not_found", param="model")


async def _check_grammar(grammars: Grammars, body: Body, grammar: Grammar) -> None:
    """Compile the grammar of a body's answers in a thread, unless it is cached, so that a wrong one is refused at once.

    Raises:
        RequestError: it cannot be compiled, no text satisfies it, it takes too much work, or ``max_tokens`` is too
            small for its shortest text.
    """
    is_call = isinstance(body, ChatCompletionRequest) and bool(body.forced)
    field = "tools" if is_call else next(iter(body.forms), "tools")
    try:
        await asyncio.shield(asyncio.wrap_future(grammars.prepare(grammar)))  # others may wait for it too
    except GrammarError as error:
        field = "tools" if error.is_other else field
        raise RequestError(f"{field} cannot be honoured: {error}", field) from None
    if not body.token_limit:
        return
    least = await asyncio.shield(asyncio.wrap_future(grammars.count_shortest(grammar)))
    if least is not None and body.token_limit < least:
        name = "max_tokens" if body.max_tokens is not None else "max_completion_tokens"
        message = f"{name} is {body.token_limit}; the shortest answer that fits {field} has {least} tokens"
        raise RequestError(message, name)


def _model_fields(card: ModelCard, name: str, caller: Caller) -> dict[str, object]:
    """What /v1/models says of a model under one of its names, and what the caller may ask of its speculation."""
    most = card.limit_nodes if caller.max_nodes is None else min(card.limit_nodes, caller.max_nodes)
    return {
        "id": name,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "root": card.name,
        "max_model_len": card.max_model_len,
        "revision": card.identity.revision or None,
        "model_hash": card.identity.weights or None,
        "tokenizer_hash": card.identity.tokenizer or None,
        "speculative": {
            "method": card.method,
            "methods": [method for method in card.methods if caller.may_name(method)],
            "max_nodes": min(card.max_nodes, most),
            "limit_nodes": most,
            "trace": caller.is_admin,
        },
    }
