"""The edge of one process: the HTTP application, and the same requests as dicts for Ray handles."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI

from app.access.caller import IN_CLUSTER, AccessOptions
from app.access.keyring import Keyring
from app.api.answers.kept import GenerationBody
from app.api.application import create_app
from app.api.errors import error_body
from app.api.http import Api
from app.api.requests.parsing import validated
from app.api.requests.responses import ResponsesRequest
from app.api.requests.schemas import ChatCompletionRequest, CompletionRequest
from app.api.service import ServiceSettings
from app.inputs.tokenizers import load_tokenizer
from app.playground.options import PlaygroundOptions
from app.playground.playground import Playground
from deployments.answers.client import AnswerKeeperClient
from deployments.ingress.client import RouterClient
from deployments.ingress.fault_injection import ProcessKiller
from deployments.observability.logs import LogOptions, configure
from deployments.observability.traces import TraceOptions, tracer_of
from engine.errors import RequestError
from engine.model.identity import tokenizer_hash_if_any
from engine.model.resolve import resolve

PREFIX = b"data: "  # of a server-sent event
CALL = "CALL"  # in logs, instead of a method of HTTP


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    """What an ingress replica builds its edge from."""

    tokenizer: str  # directory or hub id
    revision: str | None  # on the hub
    settings: ServiceSettings
    logs: LogOptions
    access: AccessOptions
    traces: TraceOptions
    playground: PlaygroundOptions | None = None  # None: there is none


class Edge:
    """``app``, the ASGI application of an ingress replica, and two methods for Ray handles.

    Only code in the cluster has handles, so their bodies need no key and may use all fields.

    A body with ``messages`` is a chat completion, one with ``input`` a response, one with ``prompt`` a completion;
    fields and answers are those of the HTTP endpoints. An error is answered as HTTP does: ``{"error": {...}}``.
    """

    def __init__(self, api: Api, app: FastAPI) -> None:
        self._api = api
        self.app = app

    async def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a body as a whole, like the HTTP endpoint without ``stream``."""
        exchange = self._api.access_log.begin(CALL, "generate")
        try:
            answer = await self._api.answer(self._parse(body, stream=False), len(repr(body)), IN_CLUSTER)
            return msgspec.json.decode(answer, type=dict[str, Any])
        except Exception as error:
            return msgspec.json.decode(error_body(error), type=dict[str, Any])
        finally:
            self._api.access_log.end(exchange)

    async def generate_stream(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Answer a body with the chunks of the HTTP endpoint's event stream."""
        exchange = self._api.access_log.begin(CALL, "generate_stream")
        try:
            request = self._parse(body, stream=True)
            async with aclosing(await self._api.events(request, len(repr(body)), IN_CLUSTER)) as events:
                async for event in events:
                    for line in event.splitlines():
                        if line.startswith(PREFIX + b"{"):
                            yield msgspec.json.decode(line[len(PREFIX) :])
        except Exception as error:
            yield msgspec.json.decode(error_body(error))
        finally:
            self._api.access_log.end(exchange)

    def _parse(self, body: dict[str, Any], *, stream: bool) -> GenerationBody:
        fields = {"model": self._api.model_name} | body | {"stream": stream}
        schema: type[GenerationBody] = CompletionRequest
        if "messages" in body or "input" in body:
            schema = ChatCompletionRequest if "messages" in body else ResponsesRequest
        request = validated(schema, fields)
        if request.is_kept:
            raise RequestError("background and stream_options.resumable are for HTTP, not for handles; leave them out")
        return request


def load_edge(options: EdgeOptions) -> Callable[[RouterClient, AnswerKeeperClient | None], Edge]:
    """Load the tokenizer; return what builds the edge of one ingress replica, in whose process this runs."""
    configure(options.logs, "Ingress")
    path = resolve(options.tokenizer, options.revision, weights=())
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # texts come one by one, so threads do not help
    tokenizer, identity = load_tokenizer(path), tokenizer_hash_if_any(path)
    access, shown = options.access, options.playground

    def make_edge(client: RouterClient, keeper: AnswerKeeperClient | None) -> Edge:
        client.set_tokenizer(identity)
        keyring = None
        if access.api_keys is not None:
            keyring = Keyring(Path(access.api_keys), access.replicas)
            keyring.follow()
        playground = None if shown is None else Playground(shown, ProcessKiller().kill if shown.victims else None)
        api = Api(client, tokenizer, options.settings, tracer_of(options.traces, "Ingress"), keeper)
        return Edge(api, create_app(api, access, keyring, playground))

    return make_edge
