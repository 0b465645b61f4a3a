"""The output of a response: what a text holds, as items, and the events that say how they grow.

An item is a stretch of one kind: reasoning, content, or a call. Whole answers and streams build their items here, so
both have the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.api.tools.parts import Arguments, CallBegin, Part, Reasoning, TextPart

COMPLETED, INCOMPLETE = "completed", "incomplete"
Event = dict[str, Any]


class Items:
    """The items of one response.

    Args:
        name: what ids of items end with, besides a number.
    """

    def __init__(self, name: str) -> None:
        self.done: list[dict[str, Any]] = []
        self._name = name
        self._open: dict[str, Any] | None = None
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text is not there yet

    def push(self, parts: list[Part], logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        """More of the answer; ``logprobs`` of its tokens go with the next content, those of other parts nowhere."""
        self._logprobs += logprobs
        for part in parts:
            match part:
                case TextPart(text=text):
                    yield from self._text("message", text)
                case Reasoning(text=text):
                    yield from self._text("reasoning", text)
                case CallBegin(id=call_id, name=name):
                    call = {"type": "function_call", "call_id": call_id, "name": name, "arguments": ""}
                    yield from self._begin(call)
                case Arguments(text=text):
                    assert self._open is not None
                    self._open["arguments"] += text
                    yield self._event("function_call_arguments.delta", delta=text)

    def end(self, status: str) -> Iterator[Event]:
        """The answer is complete, or was cut off: ``status`` is that of its last item."""
        if self._open is None and not self.done:
            yield from self._text("message", "")
        if self._logprobs and self._open is not None and self._open["type"] == "message":
            yield from self._text("message", "")  # the end's own
        yield from self._close(status)

    def _text(self, kind: str, text: str) -> Iterator[Event]:
        if self._open is None or self._open["type"] != kind:
            own: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
            yield from self._begin({"type": kind} | own)
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            if kind == "reasoning":
                part = {"type": "reasoning_text", "text": ""}
            yield self._event("content_part.added", content_index=0, part=dict(part))
            self._opened["content"] = [part]
        (content,) = self._opened["content"]
        content["text"] += text
        logprobs, self._logprobs = self._logprobs, []
        of_tokens = {"logprobs": logprobs} if kind == "message" else {}
        if of_tokens:
            content["logprobs"] += logprobs
        if text or logprobs:
            yield self._event(f"{content['type']}.delta", content_index=0, delta=text, **of_tokens)

    def _begin(self, item: dict[str, Any]) -> Iterator[Event]:
        yield from self._close(COMPLETED)
        if item["type"] != "message":
            self._logprobs = []
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[item["type"]]
        item_id = f"{prefix}_{len(self.done)}_{self._name}"
        self._open = {"id": item_id, "status": "in_progress"} | item
        if item["type"] != "function_call":
            self._open["content"] = []
        yield {"type": "response.output_item.added", "output_index": len(self.done), "item": dict(self._open)}

    def _close(self, status: str) -> Iterator[Event]:
        if self._open is None:
            return
        if self._open["type"] == "function_call":
            arguments, name = self._open["arguments"], self._open["name"]
            yield self._event("function_call_arguments.done", arguments=arguments, name=name)
        else:
            (part,) = self._open["content"]
            said = {"text": part["text"]} | ({"logprobs": part["logprobs"]} if "logprobs" in part else {})
            yield self._event(f"{part['type']}.done", content_index=0, **said)
            yield self._event("content_part.done", content_index=0, part=part)
        item, self._open = self._open | {"status": status}, None
        self.done.append(item)
        yield {"type": "response.output_item.done", "output_index": len(self.done) - 1, "item": item}

    @property
    def _opened(self) -> dict[str, Any]:
        assert self._open is not None
        return self._open

    def _event(self, kind: str, **fields: Any) -> Event:
        place = {"item_id": self._opened["id"], "output_index": len(self.done)}
        return {"type": f"response.{kind}"} | place | fields
