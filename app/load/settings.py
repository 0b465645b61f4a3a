"""What a run of load is told, checked; opens no connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.inputs.prompts import CHAT
from app.load.arrivals import POISSON
from app.load.slo import Slo
from engine.errors import ConfigError

PATHS = {CHAT: "/chat/completions", "completions": "/completions"}
OURS = {"stream": "answers are always streamed", "n": "one answer per request", "prompt": "use --prompts"}
OURS |= {
    "messages": "use --prompts",
    "seed": "use --seed; null sends none",
    "stream_options": "usage is always asked for",
}


@dataclass(frozen=True)
class Load:
    """How a server is loaded.

    Args:
        base: of the API, ending in ``/v1``.
        endpoint: ``CHAT`` or ``COMPLETIONS``.
        headers: sent with every request.
        concurrency: clients of a closed loop; None: an open loop.
        rate: requests per second of an open loop.
        arrivals: ``POISSON`` or ``FIXED``.
        requests: at most so many.
        duration: seconds in which requests begin.
        warmup: requests before, not counted.
        retries: attempts after the first, for each request.
        timeout: seconds per attempt.
        seed: of the first request, and of the arrivals.
        slo: what goodput counts.
    """

    base: str
    endpoint: str = CHAT
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    concurrency: int | None = 1
    rate: float | None = None
    arrivals: str = POISSON
    requests: int | None = None
    duration: float | None = None
    warmup: int = 0
    retries: int = 0
    timeout: float = 600.0
    seed: int = 0
    slo: Slo | None = None

    @property
    def url(self) -> str:
        """Of the endpoint."""
        return self.base + PATHS[self.endpoint]

    @property
    def label(self) -> str:
        """The loop in words."""
        if self.rate is not None:
            return f"open loop, {self.rate:g} requests/s, {self.arrivals} arrivals"
        return f"closed loop, concurrency {self.concurrency}"


def base_of(url: str) -> str:
    """The API's base of what ``--url`` was given, with or without ``/v1``.

    Raises:
        ConfigError: it is no http address.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url {url!r} must begin with http:// or https://, such as http://127.0.0.1:8000")
    url = url.rstrip("/")
    return url if url.endswith("/v1") else url + "/v1"


def common_fields(fields: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """What all bodies share: ``fields``, with those of ``--extra`` merged over them (null takes a field away).

    Raises:
        ConfigError: ``extra`` sets what the load itself must.
    """
    for name, why in OURS.items():
        if extra.get(name) is not None:
            raise ConfigError(f"--extra sets {name!r}, which the load sets itself: {why}")
    return {**fields, **extra}


def distinct_of(asked: int | None, n_prompts: int, requests: int | None) -> int | None:
    """How many different requests are asked over and over.

    Args:
        asked: as ``--repeat-check`` says; None: it was not given; 0: choose.
        n_prompts: prompts there are.
        requests: to be sent, if that is known.

    Raises:
        ConfigError: nothing would be asked twice.
    """
    if asked is None:
        return None
    chosen = asked or (n_prompts if requests is None else max(1, min(n_prompts, requests // 2)))
    if requests is not None and chosen >= requests:
        raise ConfigError(f"--repeat-check {chosen}: with --requests {requests} nothing is asked twice; give fewer")
    return chosen
