"""The ASGI application around the endpoints: routes, errors, callers, origins, logs."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from app.access.caller import AccessOptions, StatusError
from app.access.gate import AccessGate, visit_of
from app.access.keyring import Keyring
from app.api.errors import error_response
from app.api.http import Api
from app.api.kept_answers import KeptAnswers
from app.api.observed import Observed
from app.api.requests.responses import ResponsesRequest
from app.api.requests.schemas import ChatCompletionRequest, CompletionRequest
from app.api.streaming import ClientGone
from app.playground.playground import Handler, Playground
from app.telemetry.exchange import current
from app.telemetry.metrics import CLIENT_CLOSED

EXPOSED = (  # headers that pages of other origins may read
    "Retry-After",
    "X-Request-Id",
    *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
)


def _with_errors(handler: Handler) -> Handler:
    """A handler that answers every error in OpenAI's form, and adds the headers of the key's limits."""

    async def answered(request: Request) -> Response:
        try:
            response = await handler(request)
        except (ClientGone, ClientDisconnect):
            current().is_client_gone = True
            return Response(status_code=CLIENT_CLOSED)
        except HTTPException:  # has an answer of its own
            raise
        except Exception as error:
            response = error_response(error)
        visit = visit_of(request.scope)
        if visit is not None:
            response.headers.update(visit.headers())
        return response

    return answered


async def _http_error(request: Request, error: Exception) -> Response:
    """The answer to an unknown path or a wrong HTTP method (404, 405), and to OPTIONS."""
    assert isinstance(error, HTTPException)
    if request.method == "OPTIONS" and error.status_code == 405:
        return Response(status_code=204, headers={"Allow": f"{(error.headers or {})['Allow']}, OPTIONS"})
    message = f"{request.method} {request.url.path}: {error.detail}"
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    return error_response(StatusError(error.status_code, message, code=code, headers=error.headers))


def _kept_routes(kept: KeptAnswers) -> list[tuple[str, str, Handler]]:
    return [
        ("GET", "/v1/responses/{id}", kept.response),
        ("DELETE", "/v1/responses/{id}", kept.delete_response),
        ("POST", "/v1/responses/{id}/cancel", kept.cancel_response),
        ("GET", "/v1/streams/{id}", kept.stream),
        ("DELETE", "/v1/streams/{id}", kept.delete_stream),
    ]


def create_app(
    api: Api, access: AccessOptions | None = None, keyring: Keyring | None = None, playground: Playground | None = None
) -> FastAPI:
    """The ASGI application with the routes of ``api``; it cannot be pickled, so make it where it runs.

    By default, clients are not trusted, and there are no pages for people.
    """
    access = access or AccessOptions()
    app = FastAPI(title="spectra-serve", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(HTTPException, _http_error)
    app.state.access_log = api.access_log
    handlers: list[tuple[str, str, Handler]] = [
        ("POST", "/v1/chat/completions", partial(api.generate, schema=ChatCompletionRequest)),
        ("POST", "/v1/completions", partial(api.generate, schema=CompletionRequest)),
        ("POST", "/v1/responses", partial(api.generate, schema=ResponsesRequest)),
        *(_kept_routes(api.kept) if api.kept is not None else ()),
        ("POST", "/tokenize", api.tokenize),
        ("POST", "/detokenize", api.detokenize),
        ("GET", "/v1/models", api.models),
        ("GET", "/v1/models/", api.models),
        ("GET", "/v1/models/{name:path}", api.model),
        ("GET", "/health", api.health),
        ("GET", "/ready", api.ready),
        ("GET", "/ping", api.ping),
        ("GET", "/metrics", api.metrics),
        ("GET", "/version", api.version),
        *(playground.routes if playground is not None else ()),
    ]
    routes = [Route(path, _with_errors(handler), methods=[method]) for method, path, handler in handlers]
    app.router.routes.extend(routes)
    app.add_middleware(
        AccessGate,
        options=access,
        keyring=keyring,
        answer=error_response,
        pages=() if playground is None else playground.open_paths,
    )
    if access.cors_origins:  # outside of the gate: a browser's preflight carries no key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=access.cors_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=EXPOSED,
        )
    app.add_middleware(Observed, log=api.access_log, routes=routes)
    return app
