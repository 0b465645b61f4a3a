"""Which requests can ever be served."""

from __future__ import annotations

from engine.errors import PromptTooLongError, RequestError
from engine.sequence import Sequence
from engine.target import TargetInfo


def check_prompt(sequence: Sequence, info: TargetInfo) -> None:
    """Refuse a sequence that no queueing can help.

    Raises:
        PromptTooLongError: prompt and wanted tokens exceed the context.
        RequestError: the prompt is empty, holds ids outside the vocabulary, or no token is wanted.
    """
    n, limit = len(sequence.tokens), info.max_model_len
    if n == 0:
        raise RequestError("the prompt is empty: give at least one token", "prompt")
    if n + sequence.params.max_tokens > limit:
        raise PromptTooLongError(
            f"{n} prompt tokens and max_tokens {sequence.params.max_tokens} exceed the context of {limit} tokens",
            "max_tokens" if n < limit else "prompt",
        )
    if sequence.params.max_tokens < 1:
        raise RequestError(f"max_tokens is {sequence.params.max_tokens}; it must be at least 1", "max_tokens")
    wrong = next((token for token in sequence.tokens if not 0 <= token < info.spec.vocab_size), None)
    if wrong is not None:
        raise RequestError(f"token id {wrong} is outside the vocabulary of {info.spec.vocab_size}", "prompt")
