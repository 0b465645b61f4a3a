"""How the texts of answers are read."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from app.config.field_group import FieldGroup


class AnswerFields(FieldGroup):
    """What is taken out of the text of a chat's answer."""

    TITLE: ClassVar[str] = "answers"

    tool_parser: Literal["auto", "none", "hermes", "llama3", "mistral"] = Field(
        "auto",
        description="how the model writes calls of tools: hermes (Hermes, Qwen, SmolLM2), llama3, mistral; auto "
        "tells by its chat template; none refuses tools",
    )
    reasoning_parser: Literal["auto", "none", "think"] = Field(
        "auto",
        description="think takes what stands between <think> and </think> out of the content, as reasoning_content; "
        "auto does if the model's chat template has these marks; none leaves it there",
    )
