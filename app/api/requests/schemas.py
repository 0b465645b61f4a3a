"""The bodies of requests for text: OpenAI's fields and our extensions, with their types, ranges and defaults.

To add a field that clients may send: declare it here, map it in `convert` (or `grants`, if it takes a key's leave) of
this room to the engine's request, and add it there (`engine/request.py`, or `engine/sampling/params.py` if it is a
sampling parameter). The request travels unchanged from the edge to the scheduler. A field that cannot be honoured
belongs into `declined_fields`.

Unknown fields are refused; `parsing` turns violations into OpenAI's errors. Defaults are those of
`ServiceSettings.sampling`, then OpenAI's (temperature 1.0, top_p 1.0), except that a request without a token limit may
use what fits into the context, up to `ServiceSettings.default_max_tokens`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from app.api.requests.parsing import refuse, shorten
from app.api.requests.parts import (
    Finite,
    Int32,
    Messages,
    Name,
    SpeculativeOptions,
    StreamOptions,
    TokenId,
    weight_of,
)
from app.api.requests.predictions import PredictedOutput, weight_of_prediction
from app.api.requests.structured import StructuredFields
from app.api.requests.text_fields import TextFields
from app.api.requests.tool_fields import ToolFields
from engine.sampling.params import VerificationRule

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_LOGPROBS = 20
MAX_CHOICES = 64  # prompts times n
MAX_SALT_CHARS = 256


class SamplingFields(TextFields):
    """Fields of chat completions, text completions and responses."""

    model: Name
    min_tokens: Annotated[Int32, Field(ge=0)] = 0  # a stop id or EOS cannot be drawn earlier
    temperature: Annotated[Finite, Field(ge=0.0, le=2.0)] = 1.0  # 0 is greedy
    top_p: Annotated[Finite, Field(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[Int32, Field(ge=-1)] = 0  # 0 and -1: no limit
    min_p: Annotated[Finite, Field(ge=0.0, le=1.0)] = 0.0
    repetition_penalty: Annotated[Finite, Field(ge=0.01, le=10.0)] = 1.0  # by less, logits would not stay finite
    presence_penalty: Annotated[Finite, Field(ge=-2.0, le=2.0)] = 0.0
    frequency_penalty: Annotated[Finite, Field(ge=-2.0, le=2.0)] = 0.0
    logit_bias: dict[int, float] = Field(default_factory=dict)  # token id -> -100..100
    stop: list[str] = Field(default_factory=list)
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64, fail_fast=True)] = Field(default_factory=list)
    ignore_eos: bool = False
    seed: int | None = None  # any 64-bit integer; None: the server draws one and reports it
    stream: bool = False
    user: Name | None = None
    priority: Int32 = 0  # lower goes first
    # Requests share cached prefixes and what speculators learn only with requests of the same salt, as in vLLM.
    cache_salt: str | None = None
    verification: VerificationRule = "coupled"
    speculative: SpeculativeOptions = SpeculativeOptions()
    prediction: PredictedOutput | None = None  # a text that the answer is expected to be much like

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_list(cls, value: Any) -> Any:
        stops = [value] if isinstance(value, str) else value
        if not (isinstance(stops, list) and all(isinstance(s, str) for s in stops)):
            raise refuse("must be a string or a list of strings")
        if len(stops) > MAX_STOPS or not all(0 < len(s) <= MAX_STOP_CHARS for s in stops):
            raise refuse(f"must be at most {MAX_STOPS} strings of 1 to {MAX_STOP_CHARS} characters")
        return stops

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _bias_by_id(cls, value: Any) -> Any:
        if not isinstance(value, dict) or len(value) > 1024:
            raise refuse("must be an object of at most 1024 entries, token id to bias")
        biases: dict[int, float] = {}
        for key, bias in value.items():
            if not (isinstance(key, int) or (isinstance(key, str) and key.isascii() and key.isdigit())):
                raise refuse(f"has the key {shorten(key)}; keys must be token ids")
            if len(str(key)) > 10 or not 0 <= int(key) < 2**31:
                raise refuse(f"has the key {shorten(key)}; token ids are from 0 to {2**31 - 1}")
            if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
                raise refuse(f"gives token {key} the bias {shorten(bias)}; it must be a number from -100 to 100")
            biases[int(key)] = float(bias)
        return biases

    @field_validator("seed")
    @classmethod
    def _seed_range(cls, value: int | None) -> int | None:
        if value is not None and not -(2**63) <= value < 2**64:
            raise refuse("must be a 64-bit integer")
        return value

    @field_validator("cache_salt")
    @classmethod
    def _salt_length(cls, value: str | None) -> str | None:
        if value is not None and not 0 < len(value) <= MAX_SALT_CHARS:
            raise refuse(f"must have 1 to {MAX_SALT_CHARS} characters")  # without the value, which is a secret
        return value


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
    def token_limit(self) -> int | None:
        """The client's limit of generated tokens; None: no limit was given."""
        return self.max_tokens

    @property
    @abstractmethod
    def logprob_count(self) -> int | None:
        """Best alternatives to report per token; None: no logprobs at all."""

    @property
    def prompt_logprob_count(self) -> int | None:
        """Best alternatives to report per token of a prompt; None: no log-probabilities of prompts."""
        return self.prompt_logprobs

    @property
    @abstractmethod
    def weight(self) -> int:
        """Work of making requests of it, in bytes whose parsing takes as long; tokenising a character takes four."""


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
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise refuse("max_tokens and max_completion_tokens differ; give only one of them")
        if self.keeps_calls and (self.ignore_eos or self.allowed_token_ids or self.bad_words):
            what = "tool_choice forces a call" if self.forced else "tools has a strict function"
            raise refuse(f"{what}, which goes without ignore_eos, allowed_token_ids and bad_words")
        return self

    @property
    def token_limit(self) -> int | None:
        """The client's limit of generated tokens; None: no limit was given."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def logprob_count(self) -> int | None:
        """Best alternatives to report per token; None: no logprobs at all."""
        return self.top_logprobs if self.logprobs else None

    @property
    def weight(self) -> int:
        """Work of making requests of it, in bytes whose parsing takes as long."""
        return weight_of(self.messages) + self.template_weight + weight_of_prediction(self.prediction)


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
        """Best alternatives to report per token; None: no logprobs at all."""
        return self.logprobs

    @property
    def prompt_logprob_count(self) -> int | None:
        """Best alternatives to report per token of a prompt: those that an echo has, too."""
        echoed = self.logprobs if self.echo else None
        wanted = [count for count in (self.prompt_logprobs, echoed) if count is not None]
        return max(wanted, default=None)

    @property
    def weight(self) -> int:
        """Work of making requests of it, in bytes whose parsing takes as long."""
        prompts = sum(4 * len(p) if isinstance(p, str) else len(p) for p in self.prompt)
        return prompts + weight_of_prediction(self.prediction)


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(v) is int and abs(v) < 2**31 for v in value)
