"""What a tool is, and values for its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.demo_world.draw import Draw
from tools.demo_world.fillers.people import CITIES, NAMES, WEEKDAYS
from tools.demo_world.fillers.things import PLACES

Value = Callable[[Draw], "str | int"]
MONEY = ("euros", "dollars", "yen", "francs", "pounds", "crowns", "pesos")
LANGUAGES = ("French", "Spanish", "German", "Italian", "Polish", "Dutch", "Danish", "Greek", "Turkish", "Swedish")
MESSAGES = (
    "[see you|meet me|let us meet] on {t}",
    "I am [late|at home|at the {p}]",
    "the {p} is closed on {t}",
    "[happy birthday|thank you|good luck]",
    "can you come to the {p}?",
    "I will be at the {p} on {t}",
)
SKIES = ("sunny", "cloudy", "rainy", "windy", "snowy")


def city(draw: Draw) -> str:
    """Of a name."""
    return draw.pick(CITIES)


def person(draw: Draw) -> str:
    """Of a name."""
    return draw.pick(NAMES)


def small(draw: Draw) -> int:
    """A number that a person would say."""
    return draw.number(2, 60)


def clock(draw: Draw) -> str:
    """A time of day."""
    return f"{draw.number(7, 21)}:{draw.one(('00', '15', '30', '45'))}"


def day(draw: Draw) -> str:
    """Of the week."""
    return draw.one(WEEKDAYS)


def money(draw: Draw) -> str:
    """A currency."""
    return draw.one(MONEY)


def language(draw: Draw) -> str:
    """Of a name."""
    return draw.one(LANGUAGES)


def sky(draw: Draw) -> str:
    """How it looks."""
    return draw.one(SKIES)


def message(draw: Draw) -> str:
    """A short one."""
    return draw.phrase(MESSAGES, t=draw.one(WEEKDAYS), p=draw.pick(PLACES))


def of(pool: Any) -> Value:
    """A filler of `pool`."""
    return lambda draw: draw.pick(pool)


@dataclass(frozen=True)
class Tool:
    """A tool: its arguments in order, requests for it, and what it returns."""

    name: str
    description: str
    arguments: dict[str, Value]
    asked: Sequence[str]
    result: dict[str, Value] = field(default_factory=dict)
    sentence: str = ""

    @property
    def definition(self) -> dict[str, Any]:
        """In the form of the chat API."""
        properties = {key: {"type": "integer" if value is small else "string"} for key, value in self.arguments.items()}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


def values_of(draw: Draw, tool: Tool) -> dict[str, str | int]:
    """Arguments for one call."""
    return {key: value(draw) for key, value in tool.arguments.items()}
