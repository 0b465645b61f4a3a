"""From step events to text: each choice is assembled, and the choices of one response run side by side.

A caller that iterates `Generation.pieces` must close it (`contextlib.aclosing`): that closes every backend stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from app.api.answer_form import PLAIN, AnswerForm
from app.api.piece import Piece, TracedStep
from app.api.service import Backend
from deployments.submission.messages import ModelCard
from engine.errors import RequestError, SpectraError, TargetLostError
from engine.events import ABORT, STOP, RequestStats, SourceCounts, StepEvent, TokenLogprob, histogram
from engine.request import Request
from engine.text import StopMatcher

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


MOST_TRACED = 1 << 16  # nodes of a choice that a trace shows: a whole answer holds them until it is sent
LONG_PROMPT = 1024  # tokens; prompts above are encoded one per turn of the event loop, so that others run in between


class Choice:
    """Assembles the text of one choice.

    Args:
        index: of the choice in the response: prompt * n + choice.
        request: of the choice.
        tokenizer: of the model.
        card: of the model; its ``eos_ids`` end a text and are not reported as ``stop_reason``.
        form: of its text.
    """

    def __init__(
        self,
        index: int,
        request: Request,
        tokenizer: PreTrainedTokenizerFast,
        card: ModelCard,
        form: AnswerForm = PLAIN,
    ) -> None:
        self.index = index
        self.form = form
        self.request = request
        self.max_nodes = card.draft_limit(request)  # drafted nodes that a step may have
        self.n_tokens = 0  # generated tokens in the answer, a terminating stop id included
        self.stats: RequestStats | None = None  # of the last event; None if a stop string ended the text
        self.first_at: float | None = None  # ``time.perf_counter`` at its first tokens
        self.finish_reason: str | None = None  # None: it is not complete
        self._eos_ids = card.eos_ids
        self._detokenizer = form.detokenizer(tokenizer)
        self._matcher = StopMatcher(request.params.stop) if request.params.stop else None
        self._by_token = self._matcher is not None or request.params.logprobs is not None
        self._n_chars = len(form.echo)  # of the text so far
        self._step_tokens: list[int] = []
        self._step_accepted: list[int] = []  # only where a stop string may end the text
        self._drafts: dict[str, SourceCounts] | None = {}
        self._n_steps = self._n_traced = 0  # steps, and nodes in their traces
        self.is_refused = False  # the backend has not begun it
        self.prompt_logprobs: list[TokenLogprob] | None = None  # of the prompt's second token and those behind

    def feed(self, event: StepEvent) -> Piece:
        """The piece of one step; the choice is complete when the piece has a ``finish_reason``.

        Raises:
            RequestError: the engine aborted the request, because its grammar took too much work.
            TargetLostError: the engine aborted the request.
        """
        if event.finish_reason == ABORT and event.error:
            raise RequestError(f"the text cannot go on as its grammar asks: {event.error}")
        if event.finish_reason == ABORT:
            raise TargetLostError("the request was aborted by the server; send it again")
        if event.prompt_logprobs is not None:
            self.prompt_logprobs = event.prompt_logprobs
        piece = self._by_tokens(event) if self._by_token else self._at_once(event)
        if self.form.echo and not self.n_tokens:
            piece = msgspec.structs.replace(piece, text=self.form.echo + piece.text)
        if self.request.trace:
            piece = msgspec.structs.replace(piece, trace=[self._traced(event, piece.token_ids)])
        self._count(event, len(piece.token_ids))
        self.finish_reason = piece.finish_reason
        return piece

    def final_stats(self) -> RequestStats | None:
        """The engine's statistics, or the edge's if a stop string ended the text; None if an event lacked drafts."""
        if self.stats is not None or self._drafts is None:
            return self.stats
        return RequestStats(
            prompt_tokens=len(self.request.prompt),
            target_forwards=len(self._step_tokens),
            drafted_tokens=sum(counts.drafted for counts in self._drafts.values()),
            accepted_tokens=sum(counts.accepted for counts in self._drafts.values()),
            step_tokens=self._step_tokens,
            accepted_steps=histogram(self._step_accepted),
            by_source=self._drafts,
        )

    def _at_once(self, event: StepEvent) -> Piece:
        """The common case: all tokens of the step become text together."""
        ids, finish = event.token_ids, event.finish_reason
        if finish is None:
            return Piece(self._detokenizer.push(ids), ids)
        shown = self._shown(event)
        text = self._detokenizer.push(shown) + self._detokenizer.flush()
        return Piece(text, ids, finish, self._visible_reason(event))

    def _by_tokens(self, event: StepEvent) -> Piece:
        """Token by token, for stop strings and for the offset of each token's text."""
        ids, finish = event.token_ids, event.finish_reason
        reason: int | str | None = self._visible_reason(event)
        text, offsets = "", []
        for token in self._shown(event):
            offsets.append(self._n_chars)
            text += self._match(self._detokenizer.push((token,)), 1)
        if finish is not None:
            offsets += [self._n_chars] * (len(ids) - len(offsets))
            text += self._match(self._detokenizer.flush(), 0)
            text += self._matcher.flush() if self._matcher is not None else ""
        if self._matcher is not None and self._matcher.matched is not None:
            finish, reason = STOP, self._matcher.matched
            text += reason if self.form.includes_stop else ""
            ids = ids[: self._matcher.tokens - self.n_tokens]
        logprobs = None if event.logprobs is None else event.logprobs[: len(ids)]
        return Piece(text, ids, finish, reason, logprobs, offsets[: len(ids)])

    def _shown(self, event: StepEvent) -> list[int]:
        """Tokens that have text: a stop id has none, unless it was asked for."""
        is_hidden = event.finish_reason == STOP and not self.form.includes_stop
        return event.token_ids[:-1] if is_hidden else event.token_ids

    def _match(self, text: str, n_tokens: int) -> str:
        self._n_chars += len(text)
        return text if self._matcher is None else self._matcher.push(text, n_tokens)

    def _visible_reason(self, event: StepEvent) -> int | None:
        """The stop id if the client asked for it; None for the model's own end of text."""
        return None if event.stop_reason in self._eos_ids else event.stop_reason

    def _traced(self, event: StepEvent, used: list[int]) -> TracedStep:
        number, self._n_steps = self._n_steps, self._n_steps + 1
        self._n_traced += 0 if event.trace is None else len(event.trace.tokens)
        return TracedStep(number, used, event.trace if self._n_traced <= MOST_TRACED else None)

    def _count(self, event: StepEvent, used: int) -> None:
        if self.n_tokens:  # the first event is that of the prefill
            self._step_tokens.append(used)
            if event.drafts is None:
                self._drafts = None
            elif self._drafts is not None:
                if self._matcher is not None:
                    self._step_accepted.append(sum(counts.accepted for counts in event.drafts.values()))
                for name, counts in event.drafts.items():
                    self._drafts[name] = counts.plus(self._drafts[name]) if name in self._drafts else counts
        else:
            self.first_at = self.first_at or time.perf_counter()
        self.n_tokens += used
        self.stats = event.stats


Item = tuple[Choice, Piece]


class Generation:
    """Runs all choices of one response.

    Args:
        backend: runs their requests.
        choices: at least one.
    """

    def __init__(self, backend: Backend, choices: list[Choice]) -> None:
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

    async def _run(self, choice: Choice) -> AsyncGenerator[Item, None]:
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

    async def _pump(self, choice: Choice, queue: asyncio.Queue[Item | Exception | None]) -> None:
        """Move one choice's pieces into the queue; None means that it is complete."""
        try:
            async with aclosing(self._run(choice)) as pieces:
                async for item in pieces:
                    queue.put_nowait(item)
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)
