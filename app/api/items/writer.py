"""A response as OpenAI's Responses API writes it: whole, or as events, of which the last has the whole."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from app.api.answers.completions import Envelope, encode, speculative_metrics, usage
from app.api.answers.logprobs import TokenTexts, chat_logprobs
from app.api.choice import CompletionChoice
from app.api.errors import answer_for
from app.api.items.body import ResponsesRequest
from app.api.items.output import COMPLETED, INCOMPLETE, Event, Items
from app.api.piece import ChoiceDelta
from app.api.tools.answer import AnswerFormat, AnswerReader
from engine.events import LENGTH

FAILED = "failed"


class ResponseWriter:
    """Writes one response, which has one choice."""

    def __init__(
        self, asked: ResponsesRequest, envelope: Envelope, choice: CompletionChoice, texts: TokenTexts
    ) -> None:
        self._asked, self._envelope, self._choice = asked, envelope, choice
        self._texts = texts
        self._reader = choice.form.reader() or AnswerReader(AnswerFormat())
        self._items = Items(envelope.id.partition("_")[2])
        self._n_events = 0

    def whole(self, done: Sequence[tuple[CompletionChoice, ChoiceDelta]]) -> bytes:
        """The response without streaming, as JSON."""
        for choice, piece in done:
            for _ in self._grown(choice, piece):
                pass
        return encode(self._response(self._status))

    def event(self, choice: CompletionChoice, piece: ChoiceDelta) -> bytes:
        """The events of one step."""
        first: list[Event] = []
        if not self._n_events:
            begun = self._response("in_progress")
            first = [{"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")]
        return self._written(chain(first, self._grown(choice, piece)))

    def end(self) -> bytes:
        """The last event: the whole response."""
        status = self._status
        return self._written([{"type": f"response.{status}", "response": self._response(status)}])

    def failed(self, error: Exception) -> bytes:
        """The last event of a stream that cannot go on.

        Raises:
            Exception: ``error``, if the stream has not begun; it can still be answered with a status.
        """
        if not self._n_events:
            raise error
        failure = {"code": "server_error", "message": answer_for(error).message}
        ended = self._written(self._items.end(INCOMPLETE))
        response = self._response(FAILED) | {"error": failure}
        return ended + self._written([{"type": "response.failed", "response": response}])

    @property
    def _status(self) -> str:
        return INCOMPLETE if self._choice.finish_reason == LENGTH else COMPLETED

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
            out.append(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(numbered)))
            self._n_events += 1
        return b"".join(out)

    def _response(self, status: str) -> dict[str, Any]:
        asked, envelope = self._asked, self._envelope
        has_ended = status != "in_progress"
        fields = {
            "id": envelope.id,
            "object": "response",
            "created_at": envelope.created,
            "completed_at": int(time.time()) if status == COMPLETED else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == INCOMPLETE else None,
            "model": envelope.model,
            "output": [*self._items.done],
            "usage": self._usage() if has_ended else None,
            "background": False,
            "previous_response_id": None,
            "store": False,  # nothing is kept, whatever was asked for
            "truncation": "disabled",
            "seed": envelope.seed,
            "system_fingerprint": envelope.system_fingerprint,
        }
        if has_ended:
            fields["metrics"] = speculative_metrics([self._choice], self._texts)
        params = self._choice.request.params
        return fields | asked_fields(asked) | {"temperature": params.temperature, "top_p": params.top_p}

    def _usage(self) -> dict[str, Any]:
        counts = usage([self._choice])
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": counts["prompt_tokens_details"] | {"cache_write_tokens": 0},  # nothing is billed
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0} | counts.get("completion_tokens_details", {}),
            "total_tokens": counts["total_tokens"],
        }


def asked_fields(asked: ResponsesRequest) -> dict[str, Any]:
    """What a response says again of the body that asked for it."""
    return {
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "metadata": asked.metadata,
        "parallel_tool_calls": asked.parallel_tool_calls,
        "reasoning": {"effort": asked.reasoning.effort, "summary": None},
        "text": {"format": asked.text.format.fields},
        "tool_choice": asked.tool_choice if isinstance(asked.tool_choice, str) else dict(asked.tool_choice),
        "tools": [dict(tool) for tool in asked.tools],
        "top_logprobs": asked.top_logprobs,
        "user": asked.user,
    }
