"""Fields of completions and chats that say how text goes in and out, and those that cannot change it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from app.api.requests.parsing import Strict, refuse
from app.api.requests.parts import Name, TokenId

MAX_ALLOWED = 1024  # ids that alone may be drawn
MAX_WORDS, MAX_WORD = 64, 60  # bad words, and characters of one
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512


class HintFields(Strict):
    """What clients tell OpenAI's service. It cannot change a text, is kept nowhere, and is not answered."""

    store: bool = False
    metadata: dict[str, str] = Field(default_factory=dict)
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    prompt_cache_options: dict[str, str] = Field(default_factory=dict)
    prompt_cache_retention: Name | None = None
    session_id: Name | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None

    @field_validator("metadata", "prompt_cache_options")
    @classmethod
    def _bounded(cls, value: dict[str, str]) -> dict[str, str]:
        if len(value) > MAX_METADATA or any(
            len(key) > MAX_METADATA_KEY or len(text) > MAX_METADATA_VALUE for key, text in value.items()
        ):
            raise refuse(
                f"must have at most {MAX_METADATA} entries, keys of {MAX_METADATA_KEY} and texts of "
                f"{MAX_METADATA_VALUE} characters"
            )
        return value


class TextFields(HintFields):
    """How text goes in and out."""

    include_stop_str_in_output: bool = False  # the stop string, or a stop id's text, ends the text
    skip_special_tokens: bool = True
    # So many tokens of a prompt are kept, from its end; -1: as many as fit beside the wanted tokens.
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=2**31)] | None = None

    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED, fail_fast=True)] | None = (
        None
    )
    bad_words: list[str] = Field(default_factory=list)  # never in the text, with or without a space in front

    @field_validator("bad_words", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        is_list = isinstance(value, list) and all(isinstance(word, str) for word in value)
        if not is_list or len(value) > MAX_WORDS or not all(word.strip() and len(word) <= MAX_WORD for word in value):
            raise refuse(f"must be a list of at most {MAX_WORDS} texts of 1 to {MAX_WORD} characters")
        return value

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _some_tokens(cls, value: int | None) -> int | None:
        if value == 0:
            raise refuse("is 0; it must be at least 1, or -1 for what fits")
        return value
