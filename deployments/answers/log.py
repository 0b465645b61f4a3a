"""What makes answers durable: the interface of a log, and its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from deployments.submission.messages import RequestFailure

DELETED = 0.0  # ``AnswerChange.seconds_to_live`` of a deleted answer


class AnswerEnd(msgspec.Struct, frozen=True):
    """When and how an answer has ended."""

    at: float  # seconds since 1970
    failure: RequestFailure | None = None  # None: it is complete


class AnswerChange(msgspec.Struct, frozen=True):
    """New fields of one answer; writing them twice changes nothing."""

    id: str
    fields: dict[str, bytes]
    seconds_to_live: float


class LeaseLostError(Exception):
    """Another answer keeper has this log now."""


class AnswerLog(Protocol):
    """Keeps answers for the next keeper. Its methods block; one thread at a time calls them."""

    def load(self) -> list[dict[str, bytes]] | None:
        """Take the lease, and return the fields of every answer; None: another server has the lease.

        Raises StoreError: the log is unreachable.
        """

    def write(self, changes: Sequence[AnswerChange]) -> None:
        """Write changes and renew the lease.

        Raises StoreError (the log is unreachable, or was emptied) or LeaseLostError.
        """

    def close(self) -> None:
        """Release the lease."""
