"""The strict base of all request schemas, and the turns of a conversation."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, field_validator, model_validator
from pydantic_core import PydanticCustomError


def refuse(message: str) -> PydanticCustomError:
    """A violation whose text reads on after the field's name: "must be ..."."""
    return PydanticCustomError("refused", "{text}", {"text": message})


class Strict(BaseModel):
    """No unknown fields, no silent conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    # Fields of OpenAI that cannot be honoured here, with the values that ask for nothing.
    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {}


class Message(Strict):
    """One turn. Content may come as text parts; they are joined by newlines."""

    role: Literal["system", "user", "assistant"]
    content: str

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, value: Any) -> Any:
        """Answers are sent back as they came: with optional keys that hold nothing."""
        if not isinstance(value, dict):
            return value
        return {k: v for k, v in value.items() if k in cls.model_fields or not (v is None or v == [])}

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        texts = []
        for part in value:
            if not (isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text"):
                raise refuse('must be a string or a list of {"type": "text", "text": ...} parts; this model reads text')
            if not isinstance(part["text"], str):
                raise refuse("holds a text part whose text is not a string")
            texts.append(part["text"])
        return "\n".join(texts)
