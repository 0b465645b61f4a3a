"""Messages between ingresses and the answer keeper, apart from the events of answers that are followed."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from deployments.options import AnswerLimits as AnswerLimits
from deployments.submission.messages import RequestFailure
from engine.events import StepEvent
from engine.request import Request

QUEUED: Final = "queued"
IN_PROGRESS: Final = "in_progress"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
AnswerStatus = Literal["queued", "in_progress", "completed", "failed", "cancelled"]


class NewAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to generate and keep."""

    id: str  # random: an anonymous client's right to read is that it knows it
    tenant: str  # answers of other tenants do not exist for a reader; "": anonymous
    is_background: bool  # continues without readers, and waits while the queue is full; else a resumable stream
    requests: list[Request]  # one per choice, with the drawn seed and the digest of the model
    edge: bytes  # what the edge writes the answer from; the keeper does not read it
    created: float = 0.0  # seconds since 1970 by the keeper's clock, which sets it


class KeptAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of an answer as it is now. Its parts are encoded: the keeper must not spend its time on one poll."""

    record: bytes  # ``NewAnswer``
    status: AnswerStatus
    ended: float | None = None  # seconds since 1970; None: it has not ended
    failure: RequestFailure | None = None  # of a failed or cancelled answer
    events: list[list[bytes]] = []  # ``StepEvent``s by choice; empty lists if the caller did not ask for them

    @property
    def answer(self) -> NewAnswer:
        return msgspec.msgpack.decode(self.record, type=NewAnswer)

    def decode_events(self, choice: int) -> list[StepEvent]:
        return [msgspec.msgpack.decode(raw, type=StepEvent) for raw in self.events[choice]]
