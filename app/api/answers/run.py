"""From the pieces of a generation to the bytes that a client gets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from app.api.choice import CompletionChoice
from app.api.generation import Generation
from app.api.piece import ChoiceDelta
from app.api.requests.bodies import Bodies

LOGPROB_WEIGHT = 16  # bytes of a body whose parsing takes as long as to write a log-probability, or two


class AnswerWriter(Protocol):
    """Writes one answer, either as a whole or as events."""

    def whole(self, done: Sequence[tuple[CompletionChoice, ChoiceDelta]]) -> bytes:
        """The body without streaming; ``done`` holds each choice with its pieces joined."""
        ...

    def event(self, choice: CompletionChoice, piece: ChoiceDelta) -> bytes:
        """The events of one piece, if it has any."""
        ...

    def end(self) -> bytes:
        """What ends the stream."""
        ...

    def failed(self, error: Exception) -> bytes:
        """What ends a stream that cannot go on.

        Raises:
            Exception: ``error``, if the form of the answer has no words for it.
        """
        ...


async def whole_body(generation: Generation, writer: AnswerWriter, work: Bodies) -> bytes:
    """The whole body; ``work`` has the threads that write one with many log-probabilities."""
    parts: dict[int, list[ChoiceDelta]] = {choice.index: [] for choice in generation.choices}
    async with aclosing(generation.pieces()) as pieces:
        async for choice, piece in pieces:
            parts[choice.index].append(piece)
    done = [(choice, ChoiceDelta.join(parts[choice.index])) for choice in generation.choices]
    weight = LOGPROB_WEIGHT * sum(choice.n_logprobs for choice in generation.choices)
    return await work.run(weight, writer.whole, done)


async def event_stream(generation: Generation, writer: AnswerWriter) -> AsyncGenerator[bytes, None]:
    """The server-sent events; their reader must close the generator."""
    try:
        async with aclosing(generation.pieces()) as pieces:
            async for choice, piece in pieces:
                event = writer.event(choice, piece)
                if event:
                    yield event
        yield writer.end()
    except Exception as error:
        yield writer.failed(error)
