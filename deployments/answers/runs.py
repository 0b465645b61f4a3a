"""Runs the choices of answers at the router, and starts them again where that is allowed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

from deployments.answers.entry import AnswerEntry, decode_event
from deployments.observability.logs import current_request_id
from deployments.submission.resume import ResumableRequest
from engine.errors import OverloadedError, SpectraError, StepFailedError, TargetLostError
from engine.events import StepEvent
from engine.request import Request

RETRY_S = 1.0  # pause of a background answer that lost its router

logger = logging.getLogger(__name__)

SubmitRequest = Callable[[Request], AsyncGenerator[StepEvent, None]]


class AnswerRuns:
    """One task for each choice that is being generated.

    Args:
        submit: starts a request at the router.
        append: called with every event of a choice.
        fail: called with the error that ends an answer.
    """

    def __init__(
        self,
        submit: SubmitRequest,
        append: Callable[[AnswerEntry, int, StepEvent], None],
        fail: Callable[[AnswerEntry, SpectraError], None],
    ) -> None:
        self._submit = submit
        self._append = append
        self._fail = fail
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}  # by answer and choice

    def start(self, entry: AnswerEntry) -> None:
        """Run the choices that are not complete, unless they run."""
        choices = [] if entry.is_started and not entry.is_paused else entry.choices
        entry.is_started, entry.is_paused = True, False
        for number, choice in enumerate(choices):
            if not choice.is_complete:
                key = (entry.id, number)
                self._tasks[key] = task = asyncio.get_running_loop().create_task(self._run(entry, number))
                task.add_done_callback(partial(self._forget, key))

    def pause(self, entry: AnswerEntry) -> None:
        """Cancel the runs of an answer until it is started again."""
        self.cancel(entry)
        entry.is_paused = True

    def cancel(self, entry: AnswerEntry, choice: int | None = None) -> None:
        """Cancel the runs of an answer, or one of them, but for the one that calls this."""
        for number in range(len(entry.choices)) if choice is None else (choice,):
            task = self._tasks.get((entry.id, number))
            if task is not None and task is not asyncio.current_task():
                task.cancel()

    def cancel_all(self) -> list[asyncio.Task[None]]:
        """Cancel and return all runs."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        return tasks

    def _forget(self, key: tuple[str, int], task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:  # else the choice was started again
            del self._tasks[key]

    async def _run(self, entry: AnswerEntry, number: int) -> None:
        """Generate a choice; a background answer waits for a place in the queue, and for a router."""
        pause = 0.0
        while True:
            await asyncio.sleep(pause)
            try:
                await self._generate(entry, number)
                return
            except (OverloadedError, TargetLostError) as error:
                if not entry.is_background:
                    self._fail(entry, error)
                    return
                pause = getattr(error, "retry_after", RETRY_S)
            except SpectraError as error:
                self._fail(entry, error)
                return
            except Exception:
                logger.exception("the answer keeper failed on %s", entry.id)
                self._fail(entry, StepFailedError("the answer keeper failed on this answer"))
                return

    async def _generate(self, entry: AnswerEntry, number: int) -> None:
        """Append the events of a choice after those that are there."""
        choice, request = entry.choices[number], entry.answer.requests[number]
        current_request_id.set(request.request_id)
        former: ResumableRequest | None = None  # an earlier run of this choice
        if choice.events:
            former = ResumableRequest(request)
            former.next_submission()
            for raw in choice.events:
                former.record(decode_event(raw))
            request = former.next_submission()
        async with aclosing(self._submit(request)) as events:
            async for event in events:
                event.check_aborted()
                self._append(entry, number, event if former is None else former.record(event))
                if event.finish_reason is not None:
                    return
