"""What the text of an answer is made of, once it has been read: content, reasoning, calls of tools."""

from __future__ import annotations

import msgspec


class TextPart(msgspec.Struct, frozen=True):
    """Some of the content."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """Some of what the model thought before its content."""

    text: str


class CallBegin(msgspec.Struct, frozen=True):
    """A call begins: its arguments follow."""

    index: int  # among the calls of the answer
    id: str
    name: str


class Arguments(msgspec.Struct, frozen=True):
    """Some of a call's arguments, as the model wrote them: the pieces of a complete call are a JSON object."""

    index: int
    text: str


Part = TextPart | Reasoning | CallBegin | Arguments


def joined(parts: list[Part]) -> list[Part]:
    """The same with neighbours of one kind as one part."""
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
