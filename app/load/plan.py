"""Which request is the i-th: its prompt, its seed, its body; not when it is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.load.records import Record

WARMUP_SEED = 1_000_000_000  # added to the seeds of requests that are not counted: their answers help nobody else


@dataclass(frozen=True)
class Plan:
    """The requests of a run, as many as wanted.

    Args:
        prompts: what each prompt adds to a body.
        common: what all bodies share.
        seed: of request 0; None: no seed is sent.
        distinct: so many different requests, asked over and over; None: each request has a seed of its own.
    """

    prompts: Sequence[Mapping[str, Any]]
    common: Mapping[str, Any]
    seed: int | None = 0
    distinct: int | None = None

    def record(self, index: int, intended: float) -> Record:
        """An empty record of request ``index``; negative ones are the warm-up."""
        item = index if self.distinct is None or index < 0 else index % self.distinct
        seed = None if self.seed is None else self.seed + (item if item >= 0 else WARMUP_SEED - item)
        return Record(index, item % len(self.prompts), seed, intended)

    def body(self, record: Record) -> dict[str, Any]:
        """The body of a record's request; always streamed. A common field that is None is left out."""
        body = {"stream": True, "stream_options": {"include_usage": True}, **self.prompts[record.prompt]}
        if record.seed is not None:
            body["seed"] = record.seed
        body |= self.common
        return {name: value for name, value in body.items() if value is not None}
