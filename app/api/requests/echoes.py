"""What an answer tells again of its prompts: their text, and log-probabilities of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.api.requests.schemas import ChatCompletionRequest, CompletionRequest
from engine.errors import RequestError
from engine.request import Request

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MAX_LOGPROBS_OF_PROMPTS = 1_000_000  # of one answer: some 75 bytes of JSON each, 1.5 s of work in all
OFFSET_COST = 2  # log-probabilities that take as long to write as the place of a token in an echo


def check_logprobs_of_prompts(
    body: ChatCompletionRequest | CompletionRequest, prompts: Sequence[Sequence[int]]
) -> None:
    """Check that an answer stays of a bounded size.

    Raises:
        RequestError: it would tell too many log-probabilities of the tokens of ``prompts``.
    """
    per_token = 0 if body.prompt_logprobs is None else body.prompt_logprobs + 1
    param, n = "prompt_logprobs", 1  # a chat tells them once
    if isinstance(body, CompletionRequest):
        n = body.n
        if body.echo and body.logprobs is not None:
            per_token += body.logprobs + 1 + OFFSET_COST
            param = param if body.prompt_logprobs is not None else "echo"
    n_tokens = sum(map(len, prompts))
    if n_tokens * per_token * n > MAX_LOGPROBS_OF_PROMPTS:
        raise RequestError(
            f"{param} asks for {per_token} log-probabilities of each of {n_tokens} tokens of prompts, {n} times; all "
            f"together must be at most {MAX_LOGPROBS_OF_PROMPTS}: ask for fewer alternatives, choices or tokens",
            param,
        )


def echoes(
    body: ChatCompletionRequest | CompletionRequest, requests: Sequence[Request], tokenizer: PreTrainedTokenizerFast
) -> list[str]:
    """The beginning of each choice's text: its prompt as it was sent if that is a whole text, else decoded."""
    if not isinstance(body, CompletionRequest) or not body.echo:
        return [""] * len(requests)
    texts: list[str] = []
    for sent, request in zip(body.prompt, requests[:: body.n], strict=True):
        if isinstance(sent, str) and body.truncate_prompt_tokens is None:
            texts.append(sent)
        else:
            skips = body.skip_special_tokens
            texts.append(tokenizer.backend_tokenizer.decode(request.prompt, skip_special_tokens=skips))
    return [text for text in texts for _ in range(body.n)]
