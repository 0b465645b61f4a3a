"""Gives one reader the events of a choice, from the answer's own list: a slow reader has no queue here."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from deployments.answers.entry import AnswerEntry
from engine.errors import AnswerNotFoundError
from engine.events import StepEvent

PAGE_BYTES = 256 << 10  # the most that an ingress holds for a client that does not read


async def read_page(entry: AnswerEntry, number: int, after: int) -> AsyncGenerator[StepEvent, None]:
    """Events of a choice after its first ``after`` tokens, as they happen, up to about ``PAGE_BYTES`` or the last one.

    Raises:
        AnswerNotFoundError: the answer has been deleted.
        AnswerCancelledError: it was cancelled.
        SpectraError: it has failed.
    """
    choice, room = entry.choices[number], PAGE_BYTES
    index = choice.first_after(after)
    while room > 0:
        changed = entry.changed
        if entry.is_deleted:
            raise AnswerNotFoundError(f"the answer {entry.id!r} has been deleted")
        if index < choice.n_readable:
            event, room = choice.event_after(index, after), room - len(choice.events[index])
            index += 1
            if event is not None:
                yield event
                if event.finish_reason is not None:
                    return
        elif entry.end is not None and entry.end.failure is not None and entry.is_settled:
            raise entry.end.failure.exception()
        else:
            await changed.wait()
