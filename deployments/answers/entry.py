"""One kept answer in memory. Events stay encoded: their bytes are counted, and written to the log as they are."""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right

import msgspec

from deployments.answers.log import DELETED, AnswerChange, AnswerEnd
from deployments.answers.messages import (
    CANCELLED,
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    QUEUED,
    AnswerStatus,
    KeptAnswer,
    NewAnswer,
)
from engine.errors import AnswerCancelledError
from engine.events import StepEvent

OVERHEAD, EVENT_OVERHEAD = 2048, 64  # bytes of Python's objects around a record and around an event
DECODED = 9  # times its bytes: the memory of a record's prompts while they are generated from
RECORD, END = "record", "end"  # fields of an answer in the log; an event's field is ``CHOICE:INDEX``

_ENCODE = msgspec.msgpack.Encoder().encode
decode_event = msgspec.msgpack.Decoder(StepEvent).decode
_ANSWER = msgspec.msgpack.Decoder(NewAnswer)
_END = msgspec.msgpack.Decoder(AnswerEnd)


class _EventSize(msgspec.Struct):
    """What an index of events needs; decoded without the rest."""

    token_ids: list[int]
    finish_reason: str | None = None


_SIZE = msgspec.msgpack.Decoder(_EventSize)


class KeptChoice:
    """The events of one choice."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.is_complete = False  # the last event has a finish reason
        self.n_readable = 0  # events that readers may have: the log has them, or cannot have them now
        self.n_written = 0  # events that the log has
        self._tokens = array("Q")  # by event: tokens up to and including it

    def append(self, raw: bytes) -> None:
        """Append an encoded event."""
        size = _SIZE.decode(raw)
        self.events.append(raw)
        self._tokens.append((self._tokens[-1] if self._tokens else 0) + len(size.token_ids))
        self.is_complete = size.finish_reason is not None

    def first_after(self, after: int) -> int:
        """Index of the first event that a reader with ``after`` tokens needs: the last one is needed in any case."""
        index = bisect_right(self._tokens, after) if after else 0
        return min(index, len(self.events) - 1) if self.is_complete else index

    def event_after(self, index: int, after: int) -> StepEvent | None:
        """The event without its first tokens if they are among the first ``after``; None: nothing of it is left."""
        event = decode_event(self.events[index])
        known = min(len(event.token_ids), max(0, after - self._tokens[index] + len(event.token_ids)))
        if not known:
            return event
        if known == len(event.token_ids) and event.finish_reason is None:
            return None
        logprobs = None if event.logprobs is None else event.logprobs[known:]
        return msgspec.structs.replace(
            event, token_ids=event.token_ids[known:], logprobs=logprobs, prompt_logprobs=None, trace=None
        )


class AnswerEntry:
    """An answer, its events, its readers and what the log has of it.

    Args:
        answer: the answer.
        now: seconds since 1970.
    """

    def __init__(self, answer: NewAnswer, now: float) -> None:
        self.id, self.tenant, self.is_background = answer.id, answer.tenant, answer.is_background
        self.created = answer.created
        self.record = _ENCODE(answer)
        self.choices = [KeptChoice() for _ in answer.requests]
        self.n_bytes = OVERHEAD + len(self.record) * (1 + DECODED)
        self.end: AnswerEnd | None = None
        self.is_started = self.is_paused = False
        self.is_deleted = False
        self.n_readers = 0
        self.unread_since = now
        self.is_recorded = False  # the log has the record
        self.is_end_written = False
        self.is_settled = False  # readers may see the end, or the deletion
        self.changed = asyncio.Event()  # set when there is more to read

    @classmethod
    def restore(cls, fields: dict[str, bytes], now: float) -> AnswerEntry:
        """An answer from the log; events after a missing one are left out. Raises DecodeError or KeyError."""
        entry = cls(_ANSWER.decode(fields[RECORD]), now)
        for number, choice in enumerate(entry.choices):
            while (raw := fields.get(f"{number}:{len(choice.events)}")) is not None:
                choice.append(raw)
                entry.n_bytes += len(raw) + EVENT_OVERHEAD
            choice.n_readable = choice.n_written = len(choice.events)
        entry.is_recorded = True
        if END in fields:
            entry.end = _END.decode(fields[END])
            entry.is_end_written = entry.is_settled = True
            entry.n_bytes -= DECODED * len(entry.record)
        return entry

    @property
    def has_events(self) -> bool:
        return any(choice.events for choice in self.choices)

    @property
    def answer(self) -> NewAnswer:
        """The answer, decoded anew."""
        return _ANSWER.decode(self.record)

    @property
    def status(self) -> AnswerStatus:
        """As readers may know it."""
        if self.end is None or not self.is_settled:
            return IN_PROGRESS if any(choice.n_readable for choice in self.choices) else QUEUED
        if self.end.failure is None:
            return COMPLETED
        return CANCELLED if self.end.failure.kind == AnswerCancelledError.__name__ else FAILED

    def snapshot(self, with_events: bool = False) -> KeptAnswer:
        """The answer as readers may know it."""
        end = self.end if self.is_settled else None
        return KeptAnswer(
            record=self.record,
            status=self.status,
            ended=None if end is None else end.at,
            failure=None if end is None else end.failure,
            events=[choice.events[: choice.n_readable * with_events] for choice in self.choices],
        )

    def next_change(self, room: int, seconds_to_live: float) -> AnswerChange:
        """What the log lacks; events up to about ``room`` bytes, and the end after the last of them."""
        if self.is_deleted:
            return AnswerChange(self.id, {}, DELETED)
        fields = {} if self.is_recorded else {RECORD: self.record}
        for number, choice in enumerate(self.choices):
            for index in range(choice.n_written, len(choice.events)):
                if room > 0:
                    fields[f"{number}:{index}"] = choice.events[index]
                    room -= len(choice.events[index])
        if self.end is not None and not self.is_end_written and room > 0:
            fields[END] = _ENCODE(self.end)
        return AnswerChange(self.id, fields, seconds_to_live)

    def confirm(self, change: AnswerChange) -> bool:
        """The log has ``change``: let readers have it. Returns whether the log lacks nothing any more."""
        self.is_recorded = self.is_recorded or RECORD in change.fields
        self.is_end_written = self.is_end_written or END in change.fields
        for number, choice in enumerate(self.choices):
            while f"{number}:{choice.n_written}" in change.fields:
                choice.n_written += 1
            choice.n_readable = max(choice.n_readable, choice.n_written)
        self.is_settled = self.is_settled or self.is_end_written or change.seconds_to_live == DELETED
        self.wake()
        if self.is_deleted:
            return change.seconds_to_live == DELETED
        is_written = all(choice.n_written == len(choice.events) for choice in self.choices)
        return is_written and (self.end is None or self.is_end_written)

    def publish(self) -> None:
        """Let readers have everything, whether the log has it or not."""
        for choice in self.choices:
            choice.n_readable = len(choice.events)
        self.is_settled = self.end is not None or self.is_deleted
        self.wake()

    def clear(self) -> None:
        """Free the memory of a deleted answer."""
        self.record = b""
        self.choices = []
        self.wake()

    def forget_log(self) -> None:
        """The log may have lost anything: everything is written again."""
        self.is_recorded = self.is_end_written = False
        for choice in self.choices:
            choice.n_written = 0

    def wake(self) -> None:
        """Wake those that wait for ``changed``."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
