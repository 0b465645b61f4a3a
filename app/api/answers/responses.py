"""Responses as OpenAI's Responses API writes them: whole, or as events, of which the last has the whole.

An item of the output is a stretch of one kind: reasoning, content, or a call.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from app.api.answers.completions import Envelope, encode, usage
from app.api.answers.logprobs import TokenTexts, chat_logprobs
from app.api.answers.speculation import speculative_metrics
from app.api.choice import ChoiceDelta, CompletionChoice
from app.api.errors import status_error
from app.api.requests.responses import ResponsesRequest
from app.api.tools.answer import AnswerReader
from app.api.tools.parts import Arguments, CallBegin, Part, Reasoning, TextPart
from engine.errors import AnswerCancelledError
from engine.events import LENGTH

QUEUED, IN_PROGRESS, INCOMPLETE = "queued", "in_progress", "incomplete"
COMPLETED, FAILED, CANCELLED = "completed", "failed", "cancelled"
# Fields of a body that its response repeats.
REPEATED = ("instructions", "max_output_tokens", "max_tool_calls", "metadata", "top_logprobs", "user")
PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}  # of the ids of items
Event = dict[str, Any]


class ResponseItems:
    """The items of one response, whose ids end with ``name`` after a number."""

    def __init__(self, name: str) -> None:
        self.done: list[dict[str, Any]] = []
        self._name = name
        self._open: dict[str, Any] | None = None
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text is still held back

    @property
    def so_far(self) -> list[dict[str, Any]]:
        """All items, with the open one as far as it is known."""
        return [*self.done, *([] if self._open is None else [dict(self._open)])]

    def push(self, parts: list[Part], logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        """Add parts of the answer; the next content takes ``logprobs``, and those of other parts are dropped."""
        self._logprobs += logprobs
        for part in parts:
            match part:
                case TextPart(text=text):
                    yield from self._text("message", text)
                case Reasoning(text=text):
                    yield from self._text("reasoning", text)
                case CallBegin(id=call_id, name=name):
                    yield from self._begin("function_call", call_id=call_id, name=name, arguments="")
                case Arguments(text=text):
                    self._opened["arguments"] += text
                    yield self._event("function_call_arguments.delta", delta=text)

    def end(self, status: str) -> Iterator[Event]:
        is_empty = self._open is None and not self.done
        if is_empty or (self._logprobs and self._open is not None and self._open["type"] == "message"):
            yield from self._text("message", "")  # takes the log-probabilities of the end
        yield from self._close(status)

    def _text(self, kind: str, text: str) -> Iterator[Event]:
        if self._open is None or self._open["type"] != kind:
            part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
            if kind == "message":
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                yield from self._begin(kind, role="assistant", content=[])
            else:
                yield from self._begin(kind, summary=[], content=[])
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

    def _begin(self, kind: str, **fields: Any) -> Iterator[Event]:
        yield from self._close(COMPLETED)
        if kind != "message":
            self._logprobs = []
        item_id = f"{PREFIXES[kind]}_{len(self.done)}_{self._name}"
        self._open = {"id": item_id, "status": IN_PROGRESS, "type": kind} | fields
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


class ResponseWriter:
    """Writes one response, which has one choice.

    Its events follow from the pieces alone, so their numbers are always the same if there is a piece per token.

    Args:
        after: number of the last event that the client has; -1: none.
        ended: when the response was complete, in seconds since 1970; None: it ends while it is written.
    """

    def __init__(
        self,
        body: ResponsesRequest,
        envelope: Envelope,
        choice: CompletionChoice,
        texts: TokenTexts,
        after: int = -1,
        ended: float | None = None,
    ) -> None:
        self._body, self._envelope, self._choice = body, envelope, choice
        self._texts = texts
        self._reader = AnswerReader(choice.form)
        self._items = ResponseItems(envelope.id.partition("_")[2])
        self._n_events = 0
        self._after = after
        self._ended = ended

    def begin(self) -> bytes:
        """The first events of a response in the background, which has an id before it has a text."""
        begun = [(kind, self.state(QUEUED)) for kind in ("created", "queued")]
        begun.append((IN_PROGRESS, self.state(IN_PROGRESS)))
        return self._written({"type": f"response.{kind}", "response": response} for kind, response in begun)

    def whole(self, done: Sequence[tuple[CompletionChoice, ChoiceDelta]]) -> bytes:
        for choice, piece in done:
            self._read(choice, piece)
        return encode(self.state(self._status))

    def unfinished(self, piece: ChoiceDelta | None, status: str, error: Exception | None) -> bytes:
        """A response in the background that has no end yet, or failed, or was cancelled; ``piece`` is what it has."""
        if piece is not None:
            self._read(self._choice, piece)
        if status in (FAILED, CANCELLED):
            [*self._items.end(INCOMPLETE)]
        failure = _failure(error) if error is not None and status == FAILED else None
        return encode(self.state(status) | {"error": failure})

    def event(self, choice: CompletionChoice, piece: ChoiceDelta) -> bytes:
        first: list[Event] = []
        if not self._n_events:
            begun = self.state(IN_PROGRESS)
            first = [{"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")]
        return self._written(chain(first, self._grown(choice, piece)))

    def end(self) -> bytes:
        status = self._status
        return self._written([{"type": f"response.{status}", "response": self.state(status)}])

    def failed(self, error: Exception) -> bytes:
        """The last event of a failed stream; raises ``error`` if no event was sent, so that a status can answer it."""
        if not self._n_events:
            raise error
        ended = self._written(self._items.end(INCOMPLETE))
        if isinstance(error, AnswerCancelledError):  # OpenAI has no event of this name
            return ended + self._written([{"type": "response.incomplete", "response": self.state(CANCELLED)}])
        response = self.state(FAILED) | {"error": _failure(error)}
        return ended + self._written([{"type": "response.failed", "response": response}])

    @property
    def _status(self) -> str:
        return INCOMPLETE if self._choice.finish_reason == LENGTH else COMPLETED

    def _read(self, choice: CompletionChoice, piece: ChoiceDelta) -> None:
        """Add a piece without writing events."""
        for _ in self._grown(choice, piece):
            pass

    def _grown(self, choice: CompletionChoice, piece: ChoiceDelta) -> Iterable[Event]:
        parts = self._reader.push(piece.text)
        if piece.finish_reason is not None:
            parts += self._reader.flush()
        logprobs = [] if piece.logprobs is None else chat_logprobs(piece.logprobs, self._texts)["content"]
        yield from self._items.push(parts, logprobs)
        if piece.finish_reason is not None:
            yield from self._items.end(self._status)

    def _written(self, events: Iterable[Event]) -> bytes:
        out = []
        for event in events:
            numbered = event | {"sequence_number": self._n_events}
            if self._n_events > self._after:
                out.append(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(numbered)))
            self._n_events += 1
        return b"".join(out)

    def state(self, status: str) -> dict[str, Any]:
        """The response as far as it is known, with this status."""
        body, envelope, params = self._body, self._envelope, self._choice.request.params
        has_ended = status not in (QUEUED, IN_PROGRESS)
        figures = {"metrics": speculative_metrics([self._choice], self._texts)} if has_ended else {}
        return {name: getattr(body, name) for name in REPEATED} | {
            "id": envelope.id,
            "object": "response",
            "created_at": envelope.created,
            "completed_at": int(self._ended or time.time()) if status == COMPLETED else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == INCOMPLETE else None,
            "model": envelope.body.model,
            "output": self._items.so_far,
            "usage": self._usage() if has_ended else None,
            "background": body.background,
            "previous_response_id": None,
            "store": body.background,  # nothing else is kept, whatever the request says
            "truncation": "disabled",
            "seed": envelope.seed,
            "system_fingerprint": envelope.system_fingerprint,
            "parallel_tool_calls": body.parallel_tool_calls,
            "reasoning": {"effort": body.reasoning.effort, "summary": None},
            "text": {"format": body.text.format.fields},
            "tool_choice": body.tool_choice if isinstance(body.tool_choice, str) else dict(body.tool_choice),
            "tools": [dict(tool) for tool in body.tools],
            "temperature": params.temperature,
            "top_p": params.top_p,
            **figures,
        }

    def _usage(self) -> dict[str, Any]:
        counts = usage([self._choice])
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": counts["prompt_tokens_details"] | {"cache_write_tokens": 0},  # nothing is billed
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0} | counts.get("completion_tokens_details", {}),
            "total_tokens": counts["total_tokens"],
        }


def _failure(error: Exception) -> dict[str, str]:
    return {"code": "server_error", "message": str(status_error(error))}
