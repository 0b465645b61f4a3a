"""The limits of a key: requests and tokens a minute, and concurrent requests.

Every process enforces its share of a limit (``1 / replicas``), in its event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from app.access.caller import StatusError, too_much


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """The limits of one key, over all processes; None: no limit."""

    requests: int | None = None  # a minute
    tokens: int | None = None  # a minute, of prompts and answers
    concurrent: int | None = None  # requests


class Bucket:
    """A bucket of ``per_minute`` units, refilled evenly. A full bucket lets a larger amount go, and owes the rest."""

    def __init__(self, per_minute: float, now: float) -> None:
        self.size = per_minute
        self._rate = per_minute / 60
        self._level = per_minute
        self._at = now

    def level(self, now: float) -> float:
        """Units that can be taken now; negative while it owes."""
        self._level = min(self.size, self._level + (now - self._at) * self._rate)
        self._at = now
        return self._level

    def wait(self, units: float, now: float) -> float:
        """Seconds until so many units can be taken; 0: now."""
        return max(0.0, (min(units, self.size) - self.level(now)) / self._rate)

    def add(self, units: float) -> None:
        """Put units back, or take them if negative."""
        self._level += units  # `level` cuts what exceeds the size

    def resized(self, per_minute: float, now: float) -> Bucket:
        """A bucket of another size from which as much has been taken."""
        other = Bucket(per_minute, now)
        other.add(self.level(now) - self.size)
        return other


class Allowance:
    """What one key may still use in this process."""

    def __init__(self, limits: QuotaLimits, replicas: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._replicas = replicas
        self._clock = clock
        self._running = 0
        self._requests = self._bucket(limits.requests)
        self._tokens = self._bucket(limits.tokens)

    def change(self, limits: QuotaLimits) -> None:
        """Set other limits; earlier use counts against them."""
        self._requests = self._changed(self._requests, limits.requests)
        self._tokens = self._changed(self._tokens, limits.tokens)
        self.limits = limits

    def enter(self) -> None:
        """Begin a request, which must `leave` at its end.

        Raises:
            StatusError: 429, too many requests at once or in this minute.
        """
        most = self.limits.concurrent
        if most is not None and self._running >= ceil(most / self._replicas):
            raise too_much(
                f"{self._running} requests of this key are running, which is its limit; retry when one has ended", 1
            )
        if self._requests is not None:
            now = self._clock()
            wait = self._requests.wait(1, now)
            if wait:
                message = f"this key may send {self.limits.requests} requests a minute; the next one in {ceil(wait)} s"
                raise self._refusal(message, wait)
            self._requests.add(-1)
        self._running += 1

    def leave(self) -> None:
        self._running -= 1

    def reserve(self, tokens: int) -> None:
        """Take the most tokens that a request can use.

        Raises:
            StatusError: 400, the request alone is above the limit of a minute; 429, it is not possible now.
        """
        if self._tokens is None:
            return
        limit = self.limits.tokens or 0
        if tokens > limit:
            message = f"prompt and answer may have {tokens} tokens, but this key may use {limit} a minute; ask for less"
            raise StatusError(400, message, code="tokens_per_minute_exceeded", param="max_tokens")
        wait = self._tokens.wait(tokens, self._clock())
        if wait:
            message = (
                f"prompt and answer may have {tokens} tokens; this key may use {limit} a minute, "
                f"and so many again in {ceil(wait)} s"
            )
            raise self._refusal(message, wait)
        self._tokens.add(-tokens)

    def give_back(self, tokens: int) -> None:
        if self._tokens is not None:
            self._tokens.add(tokens)

    def headers(self) -> dict[str, str]:
        """What the key may still use in this process, under OpenAI's names."""
        now, fields = self._clock(), {}
        for name, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                level = bucket.level(now)
                fields[f"x-ratelimit-limit-{name}"] = str(int(bucket.size))
                fields[f"x-ratelimit-remaining-{name}"] = str(max(0, int(level)))
                fields[f"x-ratelimit-reset-{name}"] = f"{ceil(bucket.wait(bucket.size, now))}s"
        return fields

    def _refusal(self, message: str, wait: float) -> StatusError:
        error = too_much(message, wait)
        error.headers |= self.headers()
        return error

    def _changed(self, old: Bucket | None, limit: int | None) -> Bucket | None:
        new = self._bucket(limit)
        return new if old is None or new is None else old.resized(new.size, self._clock())

    def _bucket(self, limit: int | None) -> Bucket | None:
        return None if limit is None else Bucket(max(1.0, limit / self._replicas), self._clock())
