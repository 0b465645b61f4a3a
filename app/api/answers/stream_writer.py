"""The server-sent events of a response.

The chunk of an ordinary step is joined from prepared bytes, because every stream writes one per step; all other chunks
are dicts that msgspec encodes.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from app.api.answers.completions import (
    Envelope,
    add_prompt_ids,
    choice_fields,
    encode,
    finish_reason,
    usage,
    whole_response,
)
from app.api.answers.logprobs import TokenTexts
from app.api.answers.speculation import new_steps, speculative_metrics
from app.api.choice import ChoiceDelta, CompletionChoice
from app.api.requests.schemas import StreamOptions
from app.api.tools.answer import Arguments, CallBegin, Part, Reasoning, TextPart

DONE = b"data: [DONE]\n\n"
PADDING = 64  # bytes of which an obfuscated chunk has a multiple
NO_OPTIONS = StreamOptions()


class StreamWriter:
    """Writes the server-sent events of one response."""

    def __init__(self, envelope: Envelope, choices: Sequence[CompletionChoice], texts: TokenTexts) -> None:
        self._envelope = envelope
        self._choices = choices
        self._texts = texts
        self._options = options = envelope.body.stream_options or NO_OPTIONS
        self._open = len(choices)
        self._started: set[int] = set()
        self._readers = {choice.index: reader for choice in choices if (reader := choice.form.reader()) is not None}
        request = choices[0].request
        self._has_tokens = envelope.body.return_token_ids or request.params.logprobs is not None or request.trace
        self._is_plain = not (
            self._has_tokens or self._readers or options.continuous_usage_stats or options.include_obfuscation
        )
        self._head = b"data: " + encode(envelope.fields(chunk=True))[:-1] + b',"choices":[{"index":'
        self._middle = b',"delta":{"content":' if envelope.is_chat else b',"text":'
        self._tail = b',"logprobs":null,"finish_reason":null}]'
        if envelope.is_chat:
            self._tail = b"}" + self._tail
        self._tail += b',"usage":null}\n\n' if options.include_usage else b"}\n\n"

    def whole(self, done: Sequence[tuple[CompletionChoice, ChoiceDelta]]) -> bytes:
        return whole_response(self._envelope, done, self._texts)

    def failed(self, error: Exception) -> bytes:
        """Raises ``error``, which `EventStream` sends."""
        raise error

    def event(self, choice: CompletionChoice, piece: ChoiceDelta) -> bytes:
        """The chunks of one piece; none if its text is held back as the possible start of a stop string or a call."""
        if self._is_plain and piece.finish_reason is None and choice.index in self._started:
            if not piece.text:
                return b""
            return b"%b%d%b%b%b" % (self._head, choice.index, self._middle, encode(piece.text), self._tail)
        return self._full_event(choice, piece)

    def end(self) -> bytes:
        """The end of the stream: the usage chunk if asked for, and ``[DONE]``."""
        if not self._options.include_usage:
            return DONE
        fields = self._envelope.fields(chunk=True)
        fields |= {
            "choices": [],
            "usage": usage(self._choices),
            "metrics": speculative_metrics(self._choices, self._texts),
        }
        return _sse(fields) + DONE

    def _full_event(self, choice: CompletionChoice, piece: ChoiceDelta) -> bytes:
        is_first = choice.index not in self._started
        if not (is_first or self._has_tokens or piece.text or piece.finish_reason):
            return b""
        self._started.add(choice.index)
        self._open -= piece.finish_reason is not None
        entry = choice_fields(self._envelope, choice, piece, self._texts)
        if not self._envelope.is_chat:
            return self._chunk(choice, entry | {"text": piece.text}, is_first)
        if choice.index in self._readers:
            return self._read_event(choice, piece, entry, is_first)
        role = {"role": "assistant"} if is_first else {}
        return self._chunk(choice, entry | {"delta": role | {"content": piece.text}}, is_first)

    def _read_event(self, choice: CompletionChoice, piece: ChoiceDelta, entry: dict[str, Any], is_first: bool) -> bytes:
        """A chunk per certain part, and one with the finish reason; the first has the ids and log-probabilities."""
        reader = self._readers[choice.index]
        parts = reader.push(piece.text)
        is_last = piece.finish_reason is not None
        if is_last:
            parts += reader.flush()
        found = [{"role": "assistant", "content": ""}] if is_first else []
        found += map(_delta, parts)
        if is_last or (not found and self._has_tokens):
            found.append({})
        reasons = {"finish_reason": finish_reason(piece.finish_reason, reader), "stop_reason": piece.stop_reason}
        unfinished = {"finish_reason": None, "stop_reason": None}
        chunks = []
        for i, delta in enumerate(found):
            ends = is_last and i == len(found) - 1
            chunks.append(
                self._chunk(choice, entry | (reasons if ends else unfinished) | {"delta": delta}, is_first, ends)
            )
            entry = {"index": choice.index, "logprobs": None}
            is_first = False
        return b"".join(chunks)

    def _chunk(self, choice: CompletionChoice, entry: dict[str, Any], is_first: bool, ends: bool = True) -> bytes:
        fields = self._envelope.fields(chunk=True) | {"choices": [entry]}
        if self._options.continuous_usage_stats:
            fields["usage"] = usage(self._choices)
        elif self._options.include_usage:
            fields["usage"] = None
        if not self._options.include_usage and not self._open and ends:
            fields["metrics"] = speculative_metrics(self._choices, self._texts)
        elif steps := new_steps(choice, self._texts):
            fields["metrics"] = {"speculative_decoding": {"trace": steps}}
        if is_first:
            add_prompt_ids(fields, self._envelope, [choice], [entry])
        if self._options.include_obfuscation:
            missing = -len(encode(fields)) % PADDING
            fields["obfuscation"] = secrets.token_urlsafe(missing + PADDING)[: missing + PADDING]
        return _sse(fields)


def _sse(fields: dict[str, Any]) -> bytes:
    return b"data: " + encode(fields) + b"\n\n"


def _delta(part: Part) -> dict[str, Any]:
    """The delta of one part, which OpenAI sends as a chunk of its own."""
    match part:
        case TextPart(text=text):
            return {"content": text}
        case Reasoning(text=text):
            return {"reasoning_content": text}
        case CallBegin(index=index, id=call_id, name=name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        case Arguments(index=index, text=text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
