"""One request and its answer, as an operator wants to hear of it: filled while it runs, written down at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from deployments.observability.logs import choose_request_id

if TYPE_CHECKING:
    from opentelemetry.trace import Span


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was not served, or not to its end."""

    status: int  # of HTTP
    code: str  # "" for none
    param: str  # the field, as the client wrote it; "" for none
    message: str


class ExchangeUsage(NamedTuple):
    """What an answer cost; tokens that a client did not wait for count too."""

    n: int  # choices of each prompt
    prompt_tokens: int
    generation_tokens: int
    longest: int  # tokens of its longest choice


@dataclass(slots=True, eq=False)
class Exchange:
    """One request and its answer."""

    request_id: str
    method: str  # of HTTP, or CALL for Ray handles
    path: str
    traceparent: str = ""  # of ``span``, for other processes; "": the request is not traced
    span: Span | None = None
    route: str = ""  # the template of the path; "": the path is one of a few
    began: float = field(default_factory=time.perf_counter)  # seconds
    status: int = 0  # of HTTP; 0: no answer has begun
    n_bytes: int = 0  # of its body
    tenant: str = ""
    account: str = ""  # the tenant whose usage it is: of the key, or named by the gateway; "": anonymous
    key_id: str = ""
    prompt: str = ""  # only if prompts are to be logged
    refusal: Refusal | None = None  # the last
    is_client_gone: bool = False
    figures: Callable[[], Mapping[str, object]] | None = None  # of the answer; asked once, at the end
    usage: Callable[[], ExchangeUsage] | None = None  # likewise


_current: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


def begin(exchange: Exchange) -> None:
    """Make it the exchange of the running task, and of the tasks that this one starts."""
    _current.set(exchange)


def current() -> Exchange:
    """The exchange of the running task; one that is not written down if there is none."""
    return _current.get() or Exchange(choose_request_id(None), "", "")
