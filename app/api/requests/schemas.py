"""The bodies of requests: OpenAI's fields, vLLM's and our extensions, with their types, ranges and defaults.

To add a field that clients may send: declare it here (or in `sampling_fields`, if responses have it too), map it in
`convert` (or `grants`, if it depends on the caller's key) to the engine's request, and add it there
(`engine/request.py`, or `engine/sampling/params.py` if it is a sampling parameter). The request travels unchanged from
the edge to the scheduler. A field that cannot be honoured belongs in `declined_fields`.

Unknown fields are refused; `parsing` turns violations into OpenAI's errors. Defaults are those of
`ServiceSettings.sampling`, then OpenAI's (temperature 1.0, top_p 1.0), except that a request without a token limit may
use what fits into the context, up to `ServiceSettings.default_max_tokens`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from app.api.requests.chat_fields import Messages, TemplateFields, ToolFields
from app.api.requests.parsing import Int32, Name, Strict, TokenId, refuse
from app.api.requests.sampling_fields import SamplingFields
from app.api.requests.structured import StructuredFields

MAX_LOGPROBS = 20
MAX_CHOICES = 64  # prompts times n


class StreamOptions(Strict):
    """Extra content of a stream."""

    include_usage: bool = False  # a last chunk with usage
    continuous_usage_stats: bool = False  # vLLM's: usage so far in every chunk
    include_obfuscation: bool = False  # OpenAI's: chunks are padded to few sizes, which say less of their text
    resumable: bool = False  # a client that lost the connection may read on: GET /v1/streams/{id}


class GenerationRequest(StructuredFields, SamplingFields):
    """Fields of both chat and text completions."""

    max_tokens: Annotated[Int32, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1, le=16)] = 1
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    # vLLM's: log-probabilities of the prompt's tokens, with so many alternatives.
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise refuse("stream_options needs stream to be true")
        if self.stream and self.prompt_logprob_count is not None:
            raise refuse("stream goes without log-probabilities of prompts (prompt_logprobs, or echo with logprobs)")
        limit = self.token_limit
        if limit is not None and self.min_tokens > limit:
            raise refuse(f"min_tokens is {self.min_tokens}; it must be at most max_tokens, which is {limit}")
        field = next(iter(self.forms), None)
        if field is not None and (self.allowed_token_ids or self.bad_words):
            raise refuse(f"{field} goes without allowed_token_ids and bad_words: together they may leave no token")
        return self

    @property
    def is_kept(self) -> bool:
        """Whether the answer outlives the connection."""
        return self.stream_options is not None and self.stream_options.resumable

    @property
    def token_limit(self) -> int | None:
        """The client's limit of generated tokens; None: no limit was given."""
        return self.max_tokens

    @property
    @abstractmethod
    def logprob_count(self) -> int | None:
        """Best alternatives to report per token; None: no log-probabilities at all."""

    @property
    def prompt_logprob_count(self) -> int | None:
        """Best alternatives to report per token of a prompt; None: no log-probabilities of prompts."""
        return self.prompt_logprobs


class ChatCompletionRequest(ToolFields, GenerationRequest):
    """Body of POST /v1/chat/completions."""

    endpoint = "chat"

    messages: Annotated[Messages, Field(min_length=1)]
    max_completion_tokens: Annotated[Int32, Field(ge=1)] | None = None  # the newer name of max_tokens
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0

    @model_validator(mode="after")
    def _chat_fits_together(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise refuse("top_logprobs needs logprobs to be true")
        if len({self.max_tokens, self.max_completion_tokens} - {None}) > 1:
            raise refuse("max_tokens and max_completion_tokens differ; give only one of them")
        if self.keeps_calls and (self.ignore_eos or self.allowed_token_ids or self.bad_words):
            what = "tool_choice forces a call" if self.forced else "tools has a strict function"
            raise refuse(f"{what}, which goes without ignore_eos, allowed_token_ids and bad_words")
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def logprob_count(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    def text_for_log(self) -> str:
        return "\n".join(f"{message.role}: {message.content}" for message in self.messages)


class CompletionRequest(GenerationRequest):
    """Body of POST /v1/completions."""

    endpoint = "completions"

    prompt: list[str | list[int]]  # after validation: one entry per prompt
    max_tokens: Annotated[Int32, Field(ge=0)] | None = None  # 0: an echo alone, with the prompt's log-probabilities
    add_special_tokens: bool = True
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool = False  # the text begins with the prompt

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompt_list(cls, value: Any) -> Any:
        prompts = [value] if isinstance(value, str) or _is_ids(value) else value
        if isinstance(prompts, list) and len(prompts) > MAX_CHOICES:
            raise refuse(f"holds {len(prompts)} prompts; it must hold at most {MAX_CHOICES}")
        is_list = isinstance(prompts, list) and bool(prompts)
        if not is_list or not (all(isinstance(p, str) for p in prompts) or all(_is_ids(p) for p in prompts)):
            raise refuse("must be a string, a list of strings, a list of token ids or a list of such lists")
        return prompts

    @model_validator(mode="after")
    def _writes_a_text(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise refuse("max_tokens is 0; it must be at least 1 unless echo is true")
        return self

    @property
    def logprob_count(self) -> int | None:
        return self.logprobs

    @property
    def prompt_logprob_count(self) -> int | None:
        """Best alternatives to report per token of a prompt, in ``prompt_logprobs`` or in an echo."""
        counts = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return max((count for count in counts if count is not None), default=None)

    @property
    def text_for_log(self) -> str:
        return "\n".join(map(str, self.prompt))


Body = ChatCompletionRequest | CompletionRequest


class TokenizeRequest(TemplateFields):
    """Body of POST /tokenize: a prompt, or messages and other input of the chat template, as in vLLM."""

    endpoint = "tokenize"

    model: Name | None = None
    prompt: str | None = None
    messages: Annotated[Messages, Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None  # default: true for a prompt, false for messages
    add_generation_prompt: bool = True

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise refuse("prompt or messages must be given, and not both")
        if self.prompt is not None and (self.tools or self.template_variables):
            raise refuse("tools and variables of the chat template go with messages, not with a prompt")
        return self


class DetokenizeRequest(Strict):
    """Body of POST /detokenize."""

    model: Name | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(v) is int and abs(v) < 2**31 for v in value)
