"""Calling tools: which one, with which arguments, and what to make of its result."""

from __future__ import annotations

import json
from typing import Any

from tools.demo_world.draw import Draw
from tools.demo_world.example import Example, call_text, turn
from tools.demo_world.fillers.code_names import FUNCTIONS, VARIABLES
from tools.demo_world.fillers.things import COLOURS, OBJECTS, PLACES
from tools.demo_world.tasks.small_talk import GREETINGS, THANKS
from tools.demo_world.tasks.tool import Tool, Value, city, of, person, small, values_of
from tools.demo_world.tasks.tool_kit import SEEN_TOOLS, UNSEEN_TOOLS
from tools.demo_world.wordings import wordings

DOES = (
    "[Move|Paint|Clean|Repair|Count|Sell|Hide|Weigh] the {a}[ in the {b}|]",
    "[Open|Close|Visit|Measure] the {b}",
    "[Find|Order|Bring|Store|Draw] a {a}",
)
ASKED = wordings("tool_calls")
CALL_BY_NAME = ASKED["CALL_BY_NAME"]
CALL_BY_PURPOSE = ASKED["CALL_BY_PURPOSE"]


def offered(draw: Draw, tool: Tool) -> list[dict[str, Any]]:
    """The tool among none to two others, in any order."""
    others = [t for t in draw.sample(SEEN_TOOLS, 3) if t.name != tool.name]
    tools = [tool, *others[: draw.one((0, 0, 1, 1, 2))]]
    draw.rng.shuffle(tools)
    return [t.definition for t in tools]


def call(draw: Draw) -> Example:
    """A request that one of the tools can answer."""
    tool = draw.one(UNSEEN_TOOLS if draw.split == "templates" else SEEN_TOOLS)
    values = values_of(draw, tool)
    asked = draw.phrase(tool.asked, **values)
    return Example("tool call", turn(asked, call_text(tool.name, values)), "call", offered(draw, tool))


def two_calls(draw: Draw) -> Example:
    """The same tool, for two things."""
    tool = draw.one(UNSEEN_TOOLS if draw.split == "templates" else SEEN_TOOLS)
    first, second = values_of(draw, tool), values_of(draw, tool)
    text = " ".join(draw.phrase(tool.asked, **values) for values in (first, second))
    calls = "\n".join(call_text(tool.name, values) for values in (first, second))
    return Example("tool call", turn(text, calls), "call", offered(draw, tool))


def invented_tool(draw: Draw) -> Tool:
    """A tool that no list holds, so that names and keys are read and not remembered."""
    name = draw.pick(FUNCTIONS)
    keys = draw.some(VARIABLES, draw.number(1, 3))
    values: tuple[Value, ...] = (small, person, city, of(OBJECTS), of(COLOURS))
    does = draw.phrase(DOES, a=draw.pick(OBJECTS), b=draw.pick(PLACES))
    asked = " and ".join(f"{key} {{{key}}}" for key in keys)
    wordings = draw.one((CALL_BY_NAME, CALL_BY_PURPOSE))
    listed = draw.wording(wordings, name=name, does=does[0].lower() + does[1:], asked=asked)
    return Tool(name, does, {key: draw.one(values) for key in keys}, (listed,))


def invented(draw: Draw) -> Example:
    """A call of a tool that is new, asked for by its name or by what it does, beside another such tool or none."""
    tool, *others = (invented_tool(draw) for _ in range(draw.number(1, 2)))
    values = values_of(draw, tool)
    definitions = [t.definition for t in (tool, *others)]
    draw.rng.shuffle(definitions)
    asked = tool.asked[0].format(**values)
    return Example("tool call", turn(asked, call_text(tool.name, values)), "call", definitions)


def answer(draw: Draw) -> Example:
    """What a tool returned, as a sentence."""
    tool = draw.one([t for t in SEEN_TOOLS if t.result])
    values = values_of(draw, tool)
    asked = draw.phrase(tool.asked, **values)
    found = {key: value(draw) for key, value in tool.result.items()}
    messages = [
        *turn(asked, call_text(tool.name, values)),
        {"role": "tool", "content": json.dumps(found, ensure_ascii=False)},
        {"role": "assistant", "content": tool.sentence.format(**{**values, **found})},
    ]
    return Example("tool result", messages, "text", offered(draw, tool))


def not_needed(draw: Draw) -> Example:
    """Tools that are there, and a message that needs none of them."""
    tool = draw.one(SEEN_TOOLS)
    asked, reply = draw.one((GREETINGS, THANKS))
    return Example("tool call", turn(draw.wording(asked), draw.phrase(reply[:1])), "open", offered(draw, tool))
