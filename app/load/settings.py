"""The settings of a load: how the server is loaded, the objective for its latencies, and the requests."""

from __future__ import annotations

import math
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from app.inputs.prompts import CHAT
from app.load.records import RequestRecord
from engine.errors import ConfigError

if TYPE_CHECKING:
    from app.load.stream import Endpoint
    from app.load.traces import RequestTrace

PATHS = {CHAT: "/chat/completions", "completions": "/completions"}
POISSON, FIXED = "poisson", "fixed"  # arrivals of an open loop
SLO_NAMES = ("ttft", "tpot", "e2e")
WARMUP_SEED = 1_000_000_000  # added to the seeds of the warm-up: its answers must not help the counted requests
RESERVED = {
    "stream": "answers are always streamed",
    "n": "one answer per request",
    "prompt": "use --prompts",
    "messages": "use --prompts",
    "seed": "use --seed; null sends none",
    "stream_options": "usage is always asked for",
}
"""Fields that ``--extra`` may not set, and the reason."""


@dataclass(frozen=True)
class Slo:
    """A service level objective: limits on a request's latencies in seconds; None: no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    @property
    def text(self) -> str:
        limits = {name: getattr(self, name) for name in SLO_NAMES}
        return ",".join(f"{name}={limit:g}" for name, limit in limits.items() if limit is not None)

    def met(self, record: RequestRecord) -> bool | None:
        """Whether the whole answer came within all limits; None if the server did not report its number of tokens.

        The end of an answer without text counts as its first text; an answer of one token has no TPOT to limit.
        """
        ttft = record.e2e if record.ttft is None else record.ttft
        times = ((ttft, self.ttft), (record.e2e, self.e2e), (record.tpot, self.tpot))
        if not record.ok or any(limit is not None and value is not None and value > limit for value, limit in times):
            return False
        return None if self.tpot is not None and record.completion_tokens is None else True


@dataclass(frozen=True)
class LoadProfile:
    """How the server is loaded."""

    endpoint: Endpoint
    concurrency: int | None = 1  # clients of a closed loop; None: an open loop
    rate: float | None = None  # requests per second of an open loop
    arrivals: str = POISSON  # ``POISSON`` or ``FIXED``
    requests: int | None = None  # upper limit; None: no limit
    duration: float | None = None  # seconds in which requests begin; None: no limit
    warmup: int = 0  # requests before the counted ones
    retries: int = 0  # attempts after the first, for each request
    seed: int = 0  # of the first request, and of the arrivals
    slo: Slo | None = None  # objective of the requests that goodput counts
    trace: RequestTrace | None = None  # arrivals of an open loop, in place of a rate
    metrics: str = ""  # address of the server's metrics, read before and after the run; "": they are not read
    tls: ssl.SSLContext | None = None  # which https servers are trusted; None: those that the system trusts

    @property
    def label(self) -> str:
        if self.trace is not None:
            return f"open loop, {self.trace.form} trace {Path(self.trace.file).name}, speed {self.trace.speed:g}"
        if self.rate is not None:
            return f"open loop, {self.rate:g} requests/s, {self.arrivals} arrivals"
        return f"closed loop, concurrency {self.concurrency}"


class PromptBodies(Protocol):
    """The fields that each prompt adds to a body; a sequence, or one that writes them when they are read."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class RequestPlan:
    """Prompt, seed and body of every request of a run."""

    prompts: PromptBodies
    common: Mapping[str, Any]  # fields of all bodies
    seed: int | None = 0  # of request 0; None: bodies have no seed
    distinct: int | None = None  # number of different requests, repeated in turn; None: each has a seed of its own

    def record(self, index: int, intended: float) -> RequestRecord:
        """An empty record of request ``index``; negative indices are those of the warm-up."""
        item = index if self.distinct is None or index < 0 else index % self.distinct
        seed = None if self.seed is None else self.seed + (item if item >= 0 else WARMUP_SEED - item)
        return RequestRecord(index, item % len(self.prompts), seed, intended)

    def body(self, record: RequestRecord) -> dict[str, Any]:
        """The body of a record's request, which asks for a stream; fields that are None are left out."""
        body = {"stream": True, "stream_options": {"include_usage": True}, **self.prompts[record.prompt]}
        if record.seed is not None:
            body["seed"] = record.seed
        body |= self.common
        return {name: value for name, value in body.items() if value is not None}


def parse_slo(text: str) -> Slo:
    """Read an objective such as ``ttft=0.5,tpot=0.05,e2e=10``; every limit is optional. Raises ConfigError."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in SLO_NAMES or name in limits:
            raise ConfigError(f"--slo {text!r}: {name!r} must be one of {', '.join(SLO_NAMES)}, each once")
        with suppress(ValueError):
            limits[name] = float(value)
        if not 0 < limits.get(name, 0) < math.inf:
            raise ConfigError(f"--slo {text!r}: {name} is {value!r}; it must be a number of seconds above 0")
    return Slo(**limits)


def base_of(url: str) -> str:
    """The base address of the API, ending in ``/v1``; raises ConfigError if ``--url`` is no http address."""
    is_address = False
    with suppress(ValueError):
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    if not is_address:
        raise ConfigError(f"--url is {url!r}; it must be an address such as http://127.0.0.1:8000 or http://[::1]:8000")
    return url.rstrip("/").removesuffix("/v1") + "/v1"


def trusting(file: str | None) -> ssl.SSLContext | None:
    """The https servers that a PEM file of authorities vouches for; raises ConfigError if it holds no certificate."""
    if file is None:
        return None
    try:
        return ssl.create_default_context(cafile=file)
    except ssl.SSLError as error:
        raise ConfigError(f"--tls-ca {file!r} holds no PEM certificate that can be read") from error
    except OSError as error:
        raise ConfigError(f"--tls-ca {file!r} cannot be read: {error.strerror}") from error


def common_fields(fields: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of all bodies: ``fields``, overridden by those of ``--extra`` (null removes a field).

    Raises ConfigError if ``--extra`` sets a field that the load itself sets.
    """
    for name, why in RESERVED.items():
        if extra.get(name) is not None:
            raise ConfigError(f"--extra sets {name!r}, which the load sets itself: {why}")
    return {**fields, **extra}


def distinct_of(asked: int | None, n_prompts: int, requests: int | None) -> int | None:
    """How many different requests ``--repeat-check`` repeats; raises ConfigError if none would be repeated.

    Args:
        asked: value of the flag; 0: as many as there are prompts, but at most half of the requests; None: not given.
        requests: to be sent; None: unlimited.
    """
    if asked is None:
        return None
    chosen = asked or (n_prompts if requests is None else max(1, min(n_prompts, requests // 2)))
    if requests is not None and chosen >= requests:
        raise ConfigError(f"--repeat-check {chosen} must be below --requests {requests}: no request is repeated")
    return chosen
