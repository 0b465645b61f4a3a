"""Running the choices of one request side by side, and leaving nothing behind when the client goes.

Whoever iterates `Generation.pieces` must close it (`contextlib.aclosing`): that closes every backend stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from app.api.assembly import Choice, Piece
from app.api.service import Backend
from engine.errors import TargetLostError

Item = tuple[Choice, Piece]


class Generation:
    """All choices of one request."""

    def __init__(self, backend: Backend, choices: list[Choice]) -> None:
        self._backend = backend
        self.choices = choices

    def pieces(self) -> AsyncGenerator[Item, None]:
        """Pieces as they come, of all choices; ends when every choice is complete.

        Raises:
            SpectraError: what the backend raised for any of the choices; the others are cancelled.
        """
        return self._run(self.choices[0]) if len(self.choices) == 1 else self._merge()

    async def _run(self, choice: Choice) -> AsyncGenerator[Item, None]:
        stream = await self._backend.submit(choice.request)
        try:
            async for event in stream:
                piece = choice.feed(event)
                yield choice, piece
                if piece.finish_reason is not None:
                    return
            raise TargetLostError("the answer broke off; send the request again")
        finally:
            await stream.aclose()

    async def _merge(self) -> AsyncGenerator[Item, None]:
        queue: asyncio.Queue[Item | Exception | None] = asyncio.Queue()
        tasks = [asyncio.create_task(self._pump(choice, queue)) for choice in self.choices]
        running = len(tasks)
        try:
            while running:
                item = await queue.get()
                if item is None:
                    running -= 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, choice: Choice, queue: asyncio.Queue[Item | Exception | None]) -> None:
        """Move one choice's pieces into the queue; None says that it is complete."""
        try:
            async with aclosing(self._run(choice)) as pieces:
                async for item in pieces:
                    queue.put_nowait(item)
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)
