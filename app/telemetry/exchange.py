"""One request and its answer, for log, metrics and traces: filled while it runs, reported at its end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from deployments.observability.logs import choose_request_id

if TYPE_CHECKING:
    from opentelemetry.trace import Span


OTHER = "other"  # a field that no schema has
MOST_CHARS = 200  # of what a client sent, such as its path
MOST_MESSAGE = 500  # characters, which a list of methods fits in
INDEX = re.compile(r"\[\d+\]")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was refused, or ended early."""

    status: int  # of HTTP
    code: str  # "" for none
    param: str  # the field, as the client wrote it; "" for none
    message: str


@dataclass(frozen=True, slots=True)
class LoggedFields:
    """Fields of requests, as ``speculative.method``; ``shown`` are those whose values hold no text of a client."""

    known: frozenset[str]
    shown: frozenset[str]

    def named(self, param: str) -> str:
        """The schema's field for ``param``, a label of few values: ``other`` if there is none, "" without ``param``."""
        name = INDEX.sub("", param)
        while name not in self.known and "." in name:
            name = name.rpartition(".")[0]
        return name if name in self.known or not name else OTHER

    def loggable(self, refusal: Refusal) -> str:
        """The message, cut; without the value if that may hold a text that is for the model alone.

        Messages say what is allowed after their last semicolon.
        """
        message = refusal.message
        if refusal.param and self.named(refusal.param) not in (*self.shown, OTHER) and ";" in message:
            message = f"{refusal.param}: {message.rpartition('; ')[2]}"
        return message if len(message) <= MOST_MESSAGE else message[: MOST_MESSAGE - 4] + " ..."


class ExchangeUsage(NamedTuple):
    """What an answer used, including tokens that a client did not wait for."""

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
    account: str = ""  # the tenant that the usage counts for: of the key or the gateway; "": anonymous
    key_id: str = ""
    prompt: str = ""  # only if prompts are to be logged
    refusal: Refusal | None = None  # the last
    is_client_gone: bool = False
    figures: Callable[[], Mapping[str, object]] | None = None  # of the answer; asked once, at the end
    usage: Callable[[], ExchangeUsage] | None = None  # likewise


_current: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


def begin(exchange: Exchange) -> None:
    """Make it the exchange of the running task, and of tasks that this one starts."""
    _current.set(exchange)


def current() -> Exchange:
    """The exchange of the running task, or one that is never reported."""
    return _current.get() or Exchange(choose_request_id(None), "", "")
