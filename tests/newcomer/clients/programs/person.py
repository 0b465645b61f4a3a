"""The questions and types of all programs. Values are bounded: 200 tokens hold any answer of a random model."""

from typing import Literal

from pydantic import BaseModel, Field

MODEL = "SmolLM2-135M-Instruct"
QUESTION = "What is 12 plus 7?"
ASKED = "Anna is 31 years old and lives in Rome."
TOO_MANY = 100_000  # tokens of an answer: more than fit into the context


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)
    city: Literal["Rome", "Oslo", "Lima"]


def weather(city: Literal["Rome", "Oslo"], days: Literal[1, 2, 3]) -> str:
    """The weather of a city."""
    return f"rain in {city} for {days} days"
