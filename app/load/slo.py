"""A service level objective: limits on a request's latencies, and whether it met them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.load.records import Record
from engine.errors import ConfigError

NAMES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True)
class Slo:
    """Limits in seconds; None: no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    @property
    def text(self) -> str:
        """As the flag is written."""
        limits = {name: getattr(self, name) for name in NAMES}
        return ",".join(f"{name}={limit:g}" for name, limit in limits.items() if limit is not None)

    def met(self, record: Record) -> bool | None:
        """Whether the whole answer came within all limits; None: the server did not say how many tokens there were.

        An answer without text has its end as first text; one of a single token has no time per token to limit.
        """
        if not record.ok:
            return False
        ttft = record.e2e if record.ttft is None else record.ttft
        if not all(limit is None or value <= limit for value, limit in ((ttft, self.ttft), (record.e2e, self.e2e))):
            return False
        if self.tpot is None:
            return True
        if record.completion_tokens is None:
            return None
        return record.tpot is None or record.tpot <= self.tpot


def parse_slo(text: str) -> Slo:
    """``ttft=0.5,tpot=0.05,e2e=10``, any of them.

    Raises:
        ConfigError: it is something else.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in NAMES or name in limits:
            raise ConfigError(f"--slo {text!r}: {name!r} must be one of {', '.join(NAMES)}, each once")
        limits[name] = _seconds(text, name, value)
    return Slo(**limits)


def _seconds(text: str, name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ConfigError(f"--slo {text!r}: {name} is {value!r}; it must be a number of seconds above 0")
    return seconds
