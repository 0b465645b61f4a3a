"""Writes answers to a log in batches, before readers get anything."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from deployments.answers.entry import AnswerEntry
from deployments.answers.log import AnswerChange, AnswerLog, LeaseLostError
from retrieval_store.errors import StoreError, StoreRightsError

RENEW_S = 1.0  # between two renewals of the lease, and between two attempts while the log is unreachable
HANDOVER_S = 10.0  # a former keeper that is being stopped has the lease for a few seconds
WAIT_S = 1.0  # readers wait for a write this long at most
BATCH_BYTES = 4 << 20  # of one write, a larger record apart

logger = logging.getLogger(__name__)


class LogWriter:
    """Writes what is marked, in batches, and then lets readers have it. Without a log they have it at once.

    While the log is unreachable, readers have everything at once, too. Once it is back, everything is written again: it
    may have lost what it had confirmed, for instance to a replica that lagged. Without the lease, which another server
    may have, or without the right to take it, answers are in memory alone.

    Args:
        log: None: answers are in memory alone.
        entries: the keeper's, by id.
        seconds_to_live: of an answer in the log, from now on.
        restore: called with the answers of the log, once this keeper has the lease.
        on_lost: called when another keeper has taken the log over.
    """

    def __init__(
        self,
        log: AnswerLog | None,
        entries: Mapping[str, AnswerEntry],
        seconds_to_live: Callable[[AnswerEntry], float],
        restore: Callable[[list[dict[str, bytes]]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.is_unreachable = False
        self._has_lease = False
        self._is_refused = False  # the lease, the last time
        self._began = time.monotonic()
        self._log = log
        self._entries = entries
        self._seconds_to_live = seconds_to_live
        self._restore = restore
        self._on_lost = on_lost
        self._dirty: dict[str, AnswerEntry] = {}
        self._is_marked = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "answer-log")
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take the lease if it is free, and write from now on."""
        if self._log is not None:
            await self._take_lease()
            self._running = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_loaded(self) -> bool:
        """Whether the answers of the log are here, or will not be soon: another server has it."""
        is_refused = self._is_refused and time.monotonic() - self._began > HANDOVER_S
        return self._log is None or self._has_lease or is_refused

    def mark(self, entry: AnswerEntry) -> None:
        """Write what is new of ``entry``, and then let readers have it."""
        if not self._has_lease or self.is_unreachable:
            entry.publish()
        if self._has_lease:  # else all are written once it has
            self._dirty[entry.id] = entry
            self._is_marked.set()

    async def wait_recorded(self, entry: AnswerEntry) -> bool:
        """Wait until a keeper that starts after this one would have ``entry``; False: the log is unreachable."""
        while self._has_lease and not entry.is_recorded and not entry.is_deleted:
            if self.is_unreachable:
                return False
            await entry.changed.wait()
        return not entry.is_deleted

    async def close(self) -> None:
        """Write what is left, and release the lease."""
        if self._log is None:
            return
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        with contextlib.suppress(LeaseLostError, StoreError):
            while self._has_lease and self._dirty and await self._write():
                pass
        await asyncio.get_running_loop().run_in_executor(self._thread, self._log.close)
        self._thread.shutdown(wait=False)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await self._is_marked.wait()
            self._is_marked.clear()
            try:
                is_written = await (self._write() if self._has_lease else self._take_lease())
            except Exception:  # the lease, or an error in this class: the next keeper has to continue
                logger.exception("the answer log is lost")
                self.is_unreachable = True
                self._on_lost()
                for entry in self._dirty.values():
                    entry.wake()
                return
            if not is_written:
                await asyncio.sleep(RENEW_S)
            if self._dirty:
                self._is_marked.set()

    async def _take_lease(self) -> bool:
        """Take the lease and load the answers; False: that has to wait."""
        assert self._log is not None
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self._log.load)
        except StoreRightsError as error:
            return self._refuse(str(error))
        except StoreError as error:
            self._set_unreachable(str(error))
            return False
        if found is None:
            return self._refuse("another server with this name has the answer log")
        self._has_lease, self.is_unreachable = True, False
        for entry in self._entries.values():  # begun without the lease
            entry.forget_log()
            self._dirty[entry.id] = entry
        self._restore(found)
        return True

    def _refuse(self, reason: str) -> bool:
        """Go on without the log, as it is not this keeper's; returns False."""
        if not self._is_refused:
            logger.warning("answers are in memory alone: %s", reason)
        self._is_refused, self.is_unreachable = True, False
        return False

    async def _write(self) -> bool:
        """Write one batch; False: the log is unreachable."""
        assert self._log is not None
        batch, is_everything = self._next_batch()
        changes = [change for _, change in batch]
        writing = asyncio.get_running_loop().run_in_executor(self._thread, self._log.write, changes)
        try:
            done, _ = await asyncio.wait({writing}, timeout=WAIT_S)
            if not done:
                self._set_unreachable(f"no answer within {WAIT_S:g} s")
            await writing
        except StoreError as error:
            for entry in self._entries.values():  # the log may have lost anything
                entry.forget_log()
                self._dirty.setdefault(entry.id, entry)
            self._set_unreachable(str(error))
            return False
        for entry, change in batch:
            if entry.confirm(change) and self._dirty.get(entry.id) is entry:
                del self._dirty[entry.id]
        if self.is_unreachable and is_everything:
            logger.info("the answer log is back; it has all answers again")
            self.is_unreachable = False
        return True

    def _next_batch(self) -> tuple[list[tuple[AnswerEntry, AnswerChange]], bool]:
        """Changes for one write, and whether there are no others."""
        batch: list[tuple[AnswerEntry, AnswerChange]] = []
        room = BATCH_BYTES
        for entry in self._dirty.values():
            if room <= 0:
                break
            change = entry.next_change(room, self._seconds_to_live(entry))
            room -= sum(map(len, change.fields.values()))
            batch.append((entry, change))
        return batch, room > 0

    def _set_unreachable(self, reason: str) -> None:
        if not self.is_unreachable:
            logger.warning("answers are in memory alone until the answer log is back: %s", reason)
        self.is_unreachable = True
        for entry in [*self._dirty.values()]:
            entry.publish()
