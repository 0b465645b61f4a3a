"""What the generator makes: a conversation whose last message is the right answer, and how to check another one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Check = Literal["text", "json", "call", "number", "open"]
NUMBER = re.compile(r"-?\d+")
CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class Example:
    """One conversation.

    Args:
        task: its name, a row of the evaluation's table.
        messages: in the form of the chat API; the last one is the assistant's, and is what a model has to write.
        check: how an answer is compared with it: as text, as a JSON value, as a tool call, by its last number, or
            not at all.
        tools: definitions in the form of the chat API.
    """

    task: str
    messages: Sequence[dict[str, str]]
    check: Check = "text"
    tools: Sequence[dict[str, Any]] = ()

    @property
    def answer(self) -> str:
        """The right answer."""
        return self.messages[-1]["content"]

    def is_right(self, answer: str) -> bool:
        """Whether `answer` is as good as the right one. An open example has no wrong answers."""
        if self.check == "open":
            return True
        if self.check == "text":
            return answer.strip() == self.answer.strip()
        read = {"json": read_json, "call": read_call, "number": read_number}[self.check]
        wanted = read(self.answer)
        return wanted is not None and read(answer) == wanted


def turn(user: str, assistant: str) -> tuple[dict[str, str], dict[str, str]]:
    """A question and its answer."""
    return {"role": "user", "content": user}, {"role": "assistant", "content": assistant}


def read_json(text: str) -> Any:
    """The value of `text`, which may stand in a fence; None when it is no JSON."""
    text = text.strip().removeprefix("```json").removesuffix("```")
    try:
        return json.loads(text)
    except ValueError:
        return None


def read_call(text: str) -> Any:
    """The calls of `text`, name and arguments each; None when there are none or one does not parse."""
    calls = [read_json(body) for body in CALL.findall(text)]
    return calls if calls and None not in calls else None


def read_number(text: str) -> int | None:
    """The last integer of `text`."""
    found = NUMBER.findall(text)
    return int(found[-1]) if found else None


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """A tool call as the assistant writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"
