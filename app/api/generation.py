"""The choices of one response: run together on a backend, and written as a whole body or as events.

A caller that iterates `Generation.pieces` or `event_stream` must close it (`contextlib.aclosing`): that closes every
backend stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from app.api.answers.completions import CompletionWriter
from app.api.answers.responses import ResponseWriter
from app.api.choice import ChoiceDelta, CompletionChoice, count_prompt_tokens
from app.api.requests.bodies import Bodies
from app.api.service import StepStream
from app.telemetry.exchange import ExchangeUsage
from engine.errors import SpectraError, TargetLostError

LONG_PROMPT = 1024  # tokens; longer prompts are encoded one per turn of the event loop, so that others run in between
MAX_QUEUED = 64  # pieces of several choices that a slow client has not read
LOGPROB_WEIGHT = 16  # bytes of a body whose parsing takes as long as writing one or two log-probabilities

Item = tuple[CompletionChoice, ChoiceDelta]
AnswerWriter = CompletionWriter | ResponseWriter


class Generation:
    """Runs all choices of one response.

    Args:
        source: starts the events of a choice.
        choices: of the response.
        by_token: make a piece of every token, not of every step.
        on_stop: called with a choice whose text a stop string ended, which only the edge sees.
    """

    def __init__(
        self,
        source: Callable[[CompletionChoice], Awaitable[StepStream]],
        choices: list[CompletionChoice],
        *,
        by_token: bool = False,
        on_stop: Callable[[CompletionChoice], Awaitable[None]] | None = None,
    ) -> None:
        self._source = source
        self._by_token = by_token
        self._on_stop = on_stop
        self.choices = choices
        self.prompt_tokens = count_prompt_tokens(choices)

    @property
    def most_tokens(self) -> int:
        return self.prompt_tokens + sum(choice.request.params.max_tokens for choice in self.choices)

    def used_tokens(self) -> int:
        """Tokens of prompts and answers so far; none of a prompt if the backend refused all choices."""
        if all(choice.is_refused for choice in self.choices):
            return 0
        return self.prompt_tokens + sum(choice.n_tokens for choice in self.choices)

    def figures(self, model: str, default_method: str, began: float) -> dict[str, object]:
        """The access log's figures, summed over the choices; ``began`` is of ``time.perf_counter``."""
        choices = self.choices
        every = [choice.final_stats() for choice in choices]
        steps = sum(stats.target_forwards for stats in every)
        firsts = [choice.first_at for choice in choices if choice.first_at is not None]
        reasons = dict.fromkeys(choice.finish_reason for choice in choices if choice.finish_reason is not None)
        return {
            "model": model,
            "method": choices[0].request.method or default_method,
            "choices": len(choices) if len(choices) > 1 else None,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": sum(stats.cached_tokens for stats in every),
            "completion_tokens": sum(choice.n_tokens for choice in choices),
            "accepted_per_step": round(sum(stats.accepted_tokens for stats in every) / steps, 3) if steps else None,
            "ttft_s": round(min(firsts) - began, 4) if firsts else None,
            "finish_reason": ",".join(reasons) or None,
        }

    def usage(self) -> ExchangeUsage:
        tokens = [choice.n_tokens for choice in self.choices]
        n = self.choices[-1].request.params.choice + 1
        return ExchangeUsage(n, self.prompt_tokens, generation_tokens=sum(tokens), longest=max(tokens))

    def pieces(self) -> AsyncGenerator[Item, None]:
        """Pieces of all choices as they come; ends when every choice is complete.

        Raises:
            SpectraError: the backend raised it for one of the choices; the others are cancelled.
        """
        return self._run(self.choices[0]) if len(self.choices) == 1 else self._merge()

    async def whole_body(self, writer: AnswerWriter, work: Bodies) -> bytes:
        """The whole body; the threads of ``work`` write one with many log-probabilities."""
        parts: dict[int, list[ChoiceDelta]] = {choice.index: [] for choice in self.choices}
        async with aclosing(self.pieces()) as pieces:
            async for choice, piece in pieces:
                parts[choice.index].append(piece)
        done = [(choice, ChoiceDelta.join(parts[choice.index])) for choice in self.choices]
        weight = LOGPROB_WEIGHT * sum(choice.n_logprobs for choice in self.choices)
        return await work.run(weight, writer.whole, done)

    async def event_stream(self, writer: AnswerWriter) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self.pieces()) as pieces:
                async for choice, piece in pieces:
                    event = writer.event(choice, piece)
                    if event:
                        yield event
                    elif self._by_token:
                        await asyncio.sleep(0)  # a reader that comes back has thousands of tokens already
            yield writer.end()
        except Exception as error:
            yield writer.failed(error)

    async def _run(self, choice: CompletionChoice) -> AsyncGenerator[Item, None]:
        try:
            stream = await self._source(choice)
            try:
                async for event in stream:
                    for piece in choice.feed_tokens(event) if self._by_token else (choice.feed(event),):
                        yield choice, piece
                    if choice.finish_reason is not None:
                        if event.finish_reason is None and self._on_stop is not None:
                            await self._on_stop(choice)
                        return
                raise TargetLostError("the answer broke off; send the request again")
            finally:
                await stream.aclose()
        except SpectraError:
            choice.is_refused = not choice.n_tokens
            raise

    async def _merge(self) -> AsyncGenerator[Item, None]:
        queue: asyncio.Queue[Item | Exception | None] = asyncio.Queue(MAX_QUEUED)
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
                    await queue.put(item)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)
