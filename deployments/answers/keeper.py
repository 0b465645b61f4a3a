"""Runs kept answers, with or without readers, and gives readers their events from any token on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager

import msgspec

from deployments.answers.collection import AnswerCollection
from deployments.answers.deadlines import AnswerDeadlines
from deployments.answers.entry import DECODED, EVENT_OVERHEAD, AnswerEntry
from deployments.answers.log import AnswerEnd, AnswerLog
from deployments.answers.log_writer import LogWriter
from deployments.answers.messages import KeptAnswer, NewAnswer
from deployments.answers.reading import read_page
from deployments.answers.runs import AnswerRuns, SubmitRequest
from deployments.options import AnswerLimits
from deployments.submission.messages import RequestFailure
from deployments.submission.protocol import AnswerReference
from engine.errors import (
    AnswerCancelledError,
    AnswerNotFoundError,
    OverloadedError,
    RequestError,
    SpectraError,
    TargetLostError,
)
from engine.events import STOP, StepEvent

UNREACHABLE = "the store of kept answers is unreachable; send the request again later"
LOADED_CHECK_S = 0.1  # between two checks whether the log has been read

logger = logging.getLogger(__name__)


class AnswerKeeper:
    """Keeps answers in memory. A log makes them durable, and has every event before a reader has it.

    Args:
        submit: starts a request at the router.
        limits: of the answers.
        log: for the next keeper; None: answers die with this one.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        submit: SubmitRequest,
        limits: AnswerLimits,
        log: AnswerLog | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.kept = AnswerCollection(limits, clock, self._drop)
        self.is_lost = False  # another keeper has the log
        self.on_lost: Callable[[], None] = lambda: None
        self._limits = limits
        self._clock = clock
        self._writer = LogWriter(log, self.kept.by_id, self._seconds_to_live, self._restore, self._lose)
        self._runs = AnswerRuns(submit, self._append, self._end)
        self.deadlines = AnswerDeadlines(self.kept, self._runs, limits, clock, self._end, self._drop)
        self._checking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Continue the answers of the log, now or once no other server has it."""
        await self._writer.start()
        self._checking = asyncio.get_running_loop().create_task(self.deadlines.keep_checking())

    def _restore(self, found: list[dict[str, bytes]]) -> None:
        for fields in found:
            try:
                entry = AnswerEntry.restore(fields, self._clock())
            except (msgspec.DecodeError, KeyError) as error:
                logger.warning("an answer in the log is left out: %s", error)
                continue
            self.kept.add(entry)
            self._end_if_complete(entry)
            if entry.end is None:
                self._runs.start(entry)

    async def close(self) -> None:
        """Stop; the log keeps unfinished answers for the next keeper."""
        await asyncio.gather(*self._stop(), return_exceptions=True)
        await self._writer.close()

    async def create(self, new: NewAnswer) -> None:
        """Start an answer; one that exists already stays as it is.

        Raises:
            RequestError: the request is too large to be kept.
            OverloadedError: the answers of the tenant, or of all, exceed a limit.
            TargetLostError: the log is unreachable.
        """
        entry = self.kept.by_id.get(new.id)
        if entry is None and self._writer.is_unreachable:
            raise TargetLostError(UNREACHABLE)
        if entry is None:
            entry = self._admit(new)
        elif entry.tenant != new.tenant:
            raise RequestError(f"the id {new.id!r} is taken")
        elif entry.is_started:
            return
        is_recorded = False
        try:
            is_recorded = await self._writer.wait_recorded(entry)
        finally:
            if not is_recorded:
                self._drop(entry)
        if not is_recorded:
            raise TargetLostError(UNREACHABLE)
        self._runs.start(entry)

    async def read(self, id_: str, tenant: str, with_events: bool = False) -> KeptAnswer | None:
        """The answer as it is now; None: this tenant has none with this id."""
        entry = await self._find(id_, tenant)
        return None if entry is None else entry.snapshot(with_events)

    async def cancel(self, id_: str, tenant: str) -> KeptAnswer | None:
        """Cancel an unfinished answer; None: this tenant has none with this id."""
        entry = await self._find(id_, tenant)
        if entry is None:
            return None
        self._end(entry, AnswerCancelledError("the answer was cancelled"))
        await self._wait_settled(entry)
        return entry.snapshot(with_events=True)

    async def delete(self, id_: str, tenant: str) -> bool:
        """Cancel and delete an answer; False: this tenant has none with this id."""
        entry = await self._find(id_, tenant)
        if entry is not None:
            self._drop(entry)
            await self._wait_settled(entry)
        return entry is not None

    async def finish(self, id_: str, tenant: str, choice: int) -> None:
        """Stop generating a choice whose text has ended for a reason that the engine cannot see."""
        entry = self.kept.find(id_, tenant)
        if entry is None or entry.end is not None or choice not in range(len(entry.choices)):
            return
        if not entry.choices[choice].is_complete:
            self._runs.cancel(entry, choice)
            try:
                self._append(entry, choice, StepEvent(token_ids=[], finish_reason=STOP))
            except RequestError as error:  # no room
                self._end(entry, error)

    async def follow(self, reference: AnswerReference) -> AsyncGenerator[StepEvent, None]:
        """One page of events; see ``read_page``. Raises AnswerNotFoundError if this tenant has no such answer."""
        entry = await self._find(reference.id, reference.tenant)
        if entry is None or reference.choice not in range(len(entry.choices)):
            raise AnswerNotFoundError(f"there is no answer {reference.id!r}: the id is wrong, or it was deleted")
        with self._count_reader(entry, reference.is_reader):
            async with aclosing(read_page(entry, reference.choice, reference.after)) as events:
                async for event in events:
                    yield event

    async def _find(self, id_: str, tenant: str) -> AnswerEntry | None:
        """The tenant's answer with this id; waits while the log may have it."""
        while (entry := self.kept.find(id_, tenant)) is None and not self._writer.is_loaded:
            await asyncio.sleep(LOADED_CHECK_S)
        return entry

    def _admit(self, new: NewAnswer) -> AnswerEntry:
        now, limit = self._clock(), self._limits.bytes_per_tenant
        entry = AnswerEntry(msgspec.structs.replace(new, created=now), now)
        if entry.n_bytes > limit:
            raise RequestError(f"the request takes {entry.n_bytes} bytes; kept ones may take at most {limit}")
        if problem := self.kept.make_room(entry, 1, entry.n_bytes):
            raise OverloadedError(f"{problem}; delete some, or send the request later")
        self.kept.add(entry)
        self._writer.mark(entry)
        return entry

    def _append(self, entry: AnswerEntry, number: int, event: StepEvent) -> None:
        raw = msgspec.msgpack.encode(event)
        n_bytes = len(raw) + EVENT_OVERHEAD
        if problem := self.kept.make_room(entry, 0, n_bytes):
            raise RequestError(f"the answer cannot grow: {problem}")
        self.kept.grow(entry, n_bytes)
        entry.choices[number].append(raw)
        self._end_if_complete(entry)
        self._writer.mark(entry)

    def _end_if_complete(self, entry: AnswerEntry) -> None:
        if entry.end is None and all(choice.is_complete for choice in entry.choices):
            self._set_end(entry, AnswerEnd(self._clock()))

    def _end(self, entry: AnswerEntry, error: SpectraError) -> None:
        """End an unfinished answer with an error."""
        if entry.end is None:
            self._set_end(entry, AnswerEnd(self._clock(), RequestFailure.of(error)))
            self._runs.cancel(entry)

    def _set_end(self, entry: AnswerEntry, end: AnswerEnd) -> None:
        entry.end = end
        self.kept.grow(entry, -DECODED * len(entry.record))  # nothing is generated from its prompts any more
        self._writer.mark(entry)

    def _drop(self, entry: AnswerEntry) -> None:
        if not entry.is_deleted:
            entry.is_deleted, entry.is_settled = True, False
            self._runs.cancel(entry)
            self.kept.remove(entry)
            self._writer.mark(entry)
            entry.clear()

    @contextmanager
    def _count_reader(self, entry: AnswerEntry, is_reader: bool) -> Iterator[None]:
        """Count a reader; a stream that failed before its first event goes with its last one."""
        entry.n_readers += is_reader
        if is_reader and entry.is_paused:
            self._runs.start(entry)
        try:
            yield
        finally:
            entry.n_readers -= is_reader
            if is_reader and not entry.n_readers:
                entry.unread_since = self._clock()
                if not entry.is_background and not entry.has_events and entry.end is not None:
                    self._drop(entry)

    def _seconds_to_live(self, entry: AnswerEntry) -> float:
        """For the log: a little longer than this keeper keeps the answer."""
        limits, now = self._limits, self._clock()
        end = entry.created + limits.longest_seconds if entry.end is None else entry.end.at
        return max(end + limits.keep_seconds - now, 0.0) + 1

    def _lose(self) -> None:
        """Another keeper has the answers: stop, and leave the log alone."""
        self.is_lost = True
        self._stop()
        self.on_lost()

    def _stop(self) -> list[asyncio.Task[None]]:
        """Cancel and return all tasks."""
        if self._checking is not None:
            self._checking.cancel()
        return self._runs.cancel_all()

    async def _wait_settled(self, entry: AnswerEntry) -> None:
        """Wait until the log has the end or the deletion of an answer, or is unreachable."""
        while not entry.is_settled:
            if self.is_lost:
                raise TargetLostError("another answer keeper has the answers now")
            await entry.changed.wait()
