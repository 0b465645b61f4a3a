"""What a tool is, and values for its arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tools.demo_world.draw import Draw
from tools.demo_world.fillers.people import CITIES, NAMES, WEEKDAYS

Value = Callable[[Draw], "str | int"]


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


def of(pool: Any) -> Value:
    """A filler of `pool`."""
    return lambda draw: draw.pick(pool)


@dataclass(frozen=True)
class Tool:
    """A tool: its arguments in order, requests for it, and what it returns."""

    name: str
    description: str
    arguments: dict[str, Value]
    asked: tuple[str, ...]
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
