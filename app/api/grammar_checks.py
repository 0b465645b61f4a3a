"""Grammars are compiled at the edge first: one that cannot be is its sender's fault, and answered at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from deployments.submission.messages import ModelCard
from engine.errors import RequestError
from engine.grammar.compiler import Grammars
from engine.grammar.grammar import Grammar, GrammarError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class GrammarChecks:
    """Of one process and model.

    Args:
        tokenizer: of the model.
        card: says which tokens end a text, and how many there are.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, card: ModelCard) -> None:
        self._grammars = Grammars(lambda: str(tokenizer.backend_tokenizer.to_str()), card.eos_ids, card.vocab_size)

    async def check(self, grammar: Grammar, field: str) -> None:
        """Compile a grammar, in a thread, unless it is known.

        Raises:
            RequestError: it cannot be compiled, no text satisfies it, or it takes too much work. It names ``field``,
                or ``tools`` if the other source fails.
        """
        compiling = asyncio.wrap_future(self._grammars.prepare(grammar))
        try:
            await asyncio.shield(compiling)  # others may wait for the same
        except GrammarError as error:
            field = "tools" if error.is_other else field
            raise RequestError(f"{field} cannot be honoured: {error}", field) from None
