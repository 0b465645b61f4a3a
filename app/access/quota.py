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


class Allowance:
    """What one key may still use in this process."""

    def __init__(self, limits: QuotaLimits, replicas: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._replicas = replicas
        self._clock = clock
        self._running = 0
        self._buckets: dict[str, Bucket] = {}
        self.change(limits)

    def change(self, limits: QuotaLimits) -> None:
        """Set other limits; earlier use counts against them."""
        self.limits, old, now = limits, self._buckets, self._clock()
        rates = {"requests": limits.requests, "tokens": limits.tokens}
        self._buckets = {
            name: Bucket(max(1.0, rate / self._replicas), now) for name, rate in rates.items() if rate is not None
        }
        for name in self._buckets.keys() & old.keys():
            self._buckets[name].add(old[name].level(now) - old[name].size)

    def enter(self, *, takes_place: bool = True) -> None:
        """Begin a request; one that takes a place among the concurrent ones must `leave` at its end.

        Raises:
            StatusError: 429, too many requests at once or in this minute.
        """
        most = self.limits.concurrent
        if takes_place and most is not None and self._running >= ceil(most / self._replicas):
            raise too_much(
                f"{self._running} requests of this key are running, which is its limit; retry when one has ended", 1
            )
        if (requests := self._buckets.get("requests")) is not None:
            if wait := requests.wait(1, self._clock()):
                message = f"this key may send {self.limits.requests} requests a minute; the next one in {ceil(wait)} s"
                raise self._refusal(message, wait)
            requests.add(-1)
        self._running += takes_place

    def leave(self) -> None:
        self._running -= 1

    def reserve(self, tokens: int) -> None:
        """Take the most tokens that a request can use.

        Raises:
            StatusError: 400, the request alone is above the limit of a minute; 429, it is not possible now.
        """
        limit = self.limits.tokens
        if limit is None:
            return
        if tokens > limit:
            message = f"prompt and answer may have {tokens} tokens, but this key may use {limit} a minute; ask for less"
            raise StatusError(400, message, code="tokens_per_minute_exceeded", param="max_tokens")
        if wait := self._buckets["tokens"].wait(tokens, self._clock()):
            message = (
                f"prompt and answer may have {tokens} tokens; this key may use {limit} a minute, "
                f"and so many again in {ceil(wait)} s"
            )
            raise self._refusal(message, wait)
        self._buckets["tokens"].add(-tokens)

    def give_back(self, tokens: int) -> None:
        if (bucket := self._buckets.get("tokens")) is not None:
            bucket.add(tokens)

    def headers(self) -> dict[str, str]:
        """What the key may still use in this process, under OpenAI's names."""
        now, fields = self._clock(), {}
        for name, bucket in self._buckets.items():
            fields[f"x-ratelimit-limit-{name}"] = str(int(bucket.size))
            fields[f"x-ratelimit-remaining-{name}"] = str(max(0, int(bucket.level(now))))
            fields[f"x-ratelimit-reset-{name}"] = f"{ceil(bucket.wait(bucket.size, now))}s"
        return fields

    def _refusal(self, message: str, wait: float) -> StatusError:
        error = too_much(message, wait)
        error.headers |= self.headers()
        return error
