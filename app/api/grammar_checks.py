"""Compiles grammars at the edge first, so that a wrong one is refused at once."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TypeVar

from app.api.requests.schemas import ChatCompletionRequest, GenerationRequest
from engine.errors import RequestError
from engine.grammar.compiler import Grammars
from engine.grammar.grammar import Grammar, GrammarError

T = TypeVar("T")


async def check_grammar(grammars: Grammars, body: GenerationRequest, grammar: Grammar) -> None:
    """Compile the grammar of a body's answers in a thread, unless it is cached.

    Raises:
        RequestError: it cannot be compiled, no text satisfies it, it takes too much work, or ``max_tokens`` is too
            small for its shortest text.
    """
    is_call = isinstance(body, ChatCompletionRequest) and bool(body.forced)
    field = "tools" if is_call else next(iter(body.forms), "tools")
    try:
        await _result(grammars.prepare(grammar))
    except GrammarError as error:
        field = "tools" if error.is_other else field
        raise RequestError(f"{field} cannot be honoured: {error}", field) from None
    if not body.token_limit:
        return
    least = await _result(grammars.count_shortest(grammar))
    if least is not None and body.token_limit < least:
        name = "max_tokens" if body.max_tokens is not None else "max_completion_tokens"
        message = f"{name} is {body.token_limit}; the shortest answer that fits {field} has {least} tokens"
        raise RequestError(message, name)


async def _result(future: Future[T]) -> T:
    """Wait for a result that others may wait for too."""
    return await asyncio.shield(asyncio.wrap_future(future))
