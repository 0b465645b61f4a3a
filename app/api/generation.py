"""The choices of one response, which run side by side on a backend.

A caller that iterates `Generation.pieces` must close it (`contextlib.aclosing`): that closes every backend stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from app.api.choice import CompletionChoice
from app.api.piece import ChoiceDelta
from app.api.service import Backend
from engine.errors import SpectraError, TargetLostError

LONG_PROMPT = 1024  # tokens; prompts above are encoded one per turn of the event loop, so that others run in between

Item = tuple[CompletionChoice, ChoiceDelta]


class Generation:
    """Runs all choices of one response."""

    def __init__(self, backend: Backend, choices: list[CompletionChoice]) -> None:
        self._backend = backend
        self.choices = choices

    @property
    def most_tokens(self) -> int:
        """Tokens of prompts and answers, at most."""
        return self._prompt_tokens + sum(choice.request.params.max_tokens for choice in self.choices)

    def used_tokens(self) -> int:
        """Tokens of prompts and answers so far; a prompt counts once, and not if the backend has refused it."""
        if all(choice.is_refused for choice in self.choices):
            return 0
        return self._prompt_tokens + sum(choice.n_tokens for choice in self.choices)

    @property
    def _prompt_tokens(self) -> int:
        return sum(len(choice.request.prompt) for choice in self.choices if choice.request.params.choice == 0)

    def pieces(self) -> AsyncGenerator[Item, None]:
        """Pieces of all choices as they come; ends when every choice is complete.

        Raises:
            SpectraError: the backend raised it for one of the choices; the others are cancelled.
        """
        return self._run(self.choices[0]) if len(self.choices) == 1 else self._merge()

    async def _run(self, choice: CompletionChoice) -> AsyncGenerator[Item, None]:
        try:
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
        except SpectraError:
            choice.is_refused = not choice.n_tokens
            raise

    async def _merge(self) -> AsyncGenerator[Item, None]:
        queue: asyncio.Queue[Item | Exception | None] = asyncio.Queue()
        tasks: list[asyncio.Task[None]] = []
        running = len(self.choices)
        try:
            for choice in self.choices:
                tasks.append(asyncio.create_task(self._pump(choice, queue)))
                if len(choice.request.prompt) > LONG_PROMPT:
                    await asyncio.sleep(0)
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

    async def _pump(self, choice: CompletionChoice, queue: asyncio.Queue[Item | Exception | None]) -> None:
        """Move one choice's pieces into the queue; None means that it is complete."""
        try:
            async with aclosing(self._run(choice)) as pieces:
                async for item in pieces:
                    queue.put_nowait(item)
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)
