"""Fields that chat completions, text completions and responses share, with their types, ranges and defaults."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from app.api.requests.parsing import Finite, Int32, Name, Strict, TokenId, refuse, shorten, texts_of
from engine.sampling.params import VerificationRule
from retrieval_store.service.manifest_feed import is_namespace

MAX_SALT_CHARS = 256
MAX_ALLOWED = 1024  # token ids
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
StopString = Annotated[str, Field(min_length=1, max_length=1024)]
BadWord = Annotated[str, Field(min_length=1, max_length=60)]


class HintFields(Strict):
    """Fields for OpenAI's service, which have no effect here: they are neither kept nor returned."""

    store: bool = False
    metadata: Metadata = Field(default_factory=dict)
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    prompt_cache_options: Metadata = Field(default_factory=dict)
    prompt_cache_retention: Name | None = None
    session_id: Name | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None


class SpeculativeOptions(Strict):
    """Extension: the drafting method of this request."""

    method: Name | None = None  # None: the server's default; "+" joins several methods
    max_nodes: Annotated[int, Field(ge=1, le=4096)] | None = None  # drafted nodes per step, at most the server's limit
    enabled: bool = True  # False: plain autoregressive decoding, whatever `method` says
    trace: bool = (
        False  # True: the answer reports the tree of every step, if the key permits: drafts may be others' texts
    )
    # The tenant whose texts drafts may come from, in addition to the shared corpus. Requests of one namespace share
    # cached prefixes and what speculators learn from them, unless their tenants or cache salts differ. The caller's key
    # says which namespaces a request may name (`app.api.requests.grants`).
    namespace: str | None = None

    @field_validator("namespace")
    @classmethod
    def _namespace_name(cls, value: str) -> str:
        if not is_namespace(value):
            raise refuse("must be 1 to 128 letters, digits, '.', '_' and '-', no '.' first")
        return value


class PredictedOutput(Strict):
    """OpenAI's predicted output: a text that the answer is expected to resemble; text parts are concatenated."""

    type: Literal["content"]
    content: str

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, value: Any) -> Any:
        return "".join(texts_of(value)) if isinstance(value, list) else value


class SamplingFields(HintFields):
    """Fields of chat completions, text completions and responses."""

    model: Name
    min_tokens: Annotated[Int32, Field(ge=0)] = 0  # a stop id or EOS cannot be drawn earlier
    temperature: Annotated[Finite, Field(ge=0.0, le=2.0)] = 1.0  # 0 is greedy
    top_p: Annotated[Finite, Field(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[Int32, Field(ge=-1)] = 0  # 0 and -1: no limit
    min_p: Annotated[Finite, Field(ge=0.0, le=1.0)] = 0.0
    repetition_penalty: Annotated[Finite, Field(ge=0.01, le=10.0)] = 1.0  # below, logits would not stay finite
    presence_penalty: Annotated[Finite, Field(ge=-2.0, le=2.0)] = 0.0
    frequency_penalty: Annotated[Finite, Field(ge=-2.0, le=2.0)] = 0.0
    logit_bias: dict[int, float] = Field(default_factory=dict)  # token id -> -100..100
    stop: Annotated[list[StopString], Field(max_length=16, fail_fast=True)] = Field(default_factory=list)
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64, fail_fast=True)] = Field(default_factory=list)
    include_stop_str_in_output: bool = False  # the stop string, or a stop id's text, ends the text
    ignore_eos: bool = False
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED, fail_fast=True)] | None = (
        None
    )
    # Never in the text, with or without a space before.
    bad_words: Annotated[list[BadWord], Field(max_length=64, fail_fast=True)] = Field(default_factory=list)
    skip_special_tokens: bool = True
    # Keep so many tokens from the end of a prompt; -1: as many as fit next to the requested tokens.
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None  # None: the server draws one and reports it
    stream: bool = False
    user: Name | None = None
    priority: Int32 = 0  # lower goes first
    # Requests share cached prefixes and what speculators learn only with requests of the same salt, as in vLLM.
    cache_salt: str | None = None
    verification: VerificationRule = "coupled"
    speculative: SpeculativeOptions = SpeculativeOptions()
    prediction: PredictedOutput | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_list(cls, value: Any) -> Any:
        if not isinstance(value, str | list):
            raise refuse("must be a string or a list of strings")
        return [value] if isinstance(value, str) else value

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

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _some_tokens(cls, value: int) -> int:
        if value == 0:
            raise refuse("is 0; it must be at least 1, or -1 for as many as fit")
        return value

    @field_validator("cache_salt")
    @classmethod
    def _salt_length(cls, value: str) -> str:
        if not 0 < len(value) <= MAX_SALT_CHARS:
            raise refuse(f"must have 1 to {MAX_SALT_CHARS} characters")  # without the value, which is a secret
        return value
