"""The parts of an answer: content, reasoning, calls of tools."""

from __future__ import annotations

import msgspec


class TextPart(msgspec.Struct, frozen=True):
    """Some of the content."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """Some of the reasoning before the content."""

    text: str


class CallBegin(msgspec.Struct, frozen=True):
    """The beginning of a call; its arguments follow."""

    index: int  # among the calls of the answer
    id: str
    name: str


class Arguments(msgspec.Struct, frozen=True):
    """Some of a call's arguments, as the model wrote them: the pieces of a complete call are a JSON object."""

    index: int
    text: str


Part = TextPart | Reasoning | CallBegin | Arguments


def joined(parts: list[Part]) -> list[Part]:
    """Joins neighbours of one kind into one part."""
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else None
        match last, part:
            case (TextPart(text=before), TextPart(text=text)):
                out[-1] = TextPart(before + text)
            case (Reasoning(text=before), Reasoning(text=text)):
                out[-1] = Reasoning(before + text)
            case (Arguments(index=i, text=before), Arguments(index=j, text=text)) if i == j:
                out[-1] = Arguments(i, before + text)
            case _:
                out.append(part)
    return out
