"""The bodies of /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from app.api.requests.parsing import Strict, refuse
from app.api.requests.parts import Messages, Name, TokenId, weight_of
from app.api.requests.tool_fields import TemplateFields


class TokenizeRequest(TemplateFields):
    """Body of POST /tokenize: a prompt, or messages and what else the chat template is told, as vLLM takes it."""

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

    @property
    def weight(self) -> int:
        """Work, in bytes whose parsing takes as long."""
        return weight_of(self.messages) + self.template_weight if self.messages else 4 * len(self.prompt or "")


class DetokenizeRequest(Strict):
    """Body of POST /detokenize."""

    model: Name | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]

    @property
    def weight(self) -> int:
        """Work, in bytes whose parsing takes as long."""
        return len(self.tokens)
