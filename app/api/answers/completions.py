"""Chat and text completions as clients get them: whole, or as server-sent events."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from app.api.answers.logprobs import (
    TokenTexts,
    behind_echo,
    chat_logprobs,
    completion_logprobs,
    echoed_logprobs,
    prompt_logprobs,
)
from app.api.answers.speculation import new_steps, speculative_metrics
from app.api.choice import ChoiceDelta, CompletionChoice, count_prompt_tokens
from app.api.requests.schemas import Body, ChatCompletionRequest, StreamOptions
from app.api.tools.answer import AnswerReader
from app.api.tools.parts import Arguments, CallBegin, Part, Reasoning, TextPart
from engine.events import STOP

TOOL_CALLS = "tool_calls"  # the finish reason of an answer that ended with its calls
DONE = b"data: [DONE]\n\n"
PADDING = 64  # bytes of which an obfuscated chunk has a multiple
encode = msgspec.json.Encoder().encode


class Envelope(msgspec.Struct, frozen=True):
    """Fields that all parts of one response share."""

    id: str
    created: int  # seconds since 1970
    body: Body
    seed: int
    system_fingerprint: str | None = None

    @property
    def is_chat(self) -> bool:
        return isinstance(self.body, ChatCompletionRequest)

    def fields(self, *, chunk: bool) -> dict[str, Any]:
        """Top-level fields, before ``choices``."""
        name = "chat.completion" if self.is_chat else "text_completion"
        return {
            "id": self.id,
            "object": name + ".chunk" if chunk and self.is_chat else name,
            "created": self.created,
            "model": self.body.model,
            "system_fingerprint": self.system_fingerprint,
            "seed": self.seed,
        }


def usage(choices: Sequence[CompletionChoice]) -> dict[str, Any]:
    """Token counts; a prompt with several choices, and its cached tokens, count once."""
    prompt = count_prompt_tokens(choices)
    completion = sum(c.n_tokens for c in choices)
    cached = sum(c.final_stats().cached_tokens for c in choices if c.request.params.choice == 0)
    details: dict[str, int] = {}
    if choices[0].form.has_reasoning:
        details["reasoning_tokens"] = sum(c.n_reasoning for c in choices)
    if choices[0].request.prediction:
        counts = [one for c in choices if (one := c.final_stats().by_source.get("prediction")) is not None]
        details["accepted_prediction_tokens"] = accepted = sum(one.proposed_accepted for one in counts)
        details["rejected_prediction_tokens"] = sum(one.proposed for one in counts) - accepted
    figures = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return figures | ({"completion_tokens_details": details} if details else {})


class CompletionWriter:
    """Writes one response."""

    def __init__(self, envelope: Envelope, choices: Sequence[CompletionChoice], texts: TokenTexts) -> None:
        self._envelope = envelope
        self._choices = choices
        self._texts = texts
        self._options = envelope.body.stream_options or StreamOptions()
        self._open = len(choices)
        self._started: set[int] = set()
        self._readers = {choice.index: AnswerReader(choice.form) for choice in choices if choice.form.has_parts}
        request = choices[0].request
        self._has_tokens = envelope.body.return_token_ids or request.params.logprobs is not None or request.trace
        self._chunk_fields = envelope.fields(chunk=True)

    def whole(self, done: Sequence[tuple[CompletionChoice, ChoiceDelta]]) -> bytes:
        """A response without streaming, as JSON; ``done`` holds each choice with its pieces joined."""
        fields, is_chat = self._envelope.fields(chunk=False), self._envelope.is_chat
        fields["choices"] = entries = []
        listed = echoed = None
        for choice, piece in done:
            if choice.request.params.choice == 0:  # the next ones have the same prompt
                listed, echoed = self._prompt_parts(choice)
            entry = self._entry(choice, piece)
            if is_chat:
                reader = AnswerReader(choice.form)
                entry["message"] = whole_message(reader, piece.text)
                entry["finish_reason"] = _finish_reason(piece.finish_reason, reader)
            else:
                entry["text"] = piece.text
            if listed is not None:
                holder = fields if is_chat else entry  # where vLLM puts them
                holder["prompt_logprobs"] = listed
            if echoed is not None:
                entry["logprobs"] = behind_echo(echoed, entry["logprobs"])
            self._add_prompt_ids(fields, choice, entry)
            entries.append(entry)
        fields["usage"] = usage(self._choices)
        fields["metrics"] = speculative_metrics(self._choices, self._texts)
        return encode(fields)

    def failed(self, error: Exception) -> bytes:
        """Raises ``error``, which `EventStream` sends."""
        raise error

    def event(self, choice: CompletionChoice, piece: ChoiceDelta) -> bytes:
        """The chunks of one piece; none if its text is held back as the possible start of a stop string or a call."""
        is_first = choice.index not in self._started
        if not (is_first or self._has_tokens or piece.text or piece.finish_reason):
            return b""
        self._started.add(choice.index)
        self._open -= piece.finish_reason is not None
        entry = self._entry(choice, piece)
        if not self._envelope.is_chat:
            return self._chunk(choice, entry | {"text": piece.text}, is_first)
        if choice.index in self._readers:
            return self._read_event(choice, piece, entry, is_first)
        role = {"role": "assistant"} if is_first else {}
        return self._chunk(choice, entry | {"delta": role | {"content": piece.text}}, is_first)

    def end(self) -> bytes:
        """The end of the stream: the usage chunk if asked for, and ``[DONE]``."""
        if not self._options.include_usage:
            return DONE
        metrics = speculative_metrics(self._choices, self._texts)
        return _sse(self._chunk_fields | {"choices": [], "usage": usage(self._choices), "metrics": metrics}) + DONE

    def _entry(self, choice: CompletionChoice, piece: ChoiceDelta) -> dict[str, Any]:
        """Fields of a choice, in chunks and whole responses alike, except its text."""
        entry: dict[str, Any] = {"index": choice.index, "logprobs": None}
        if piece.logprobs is not None and self._envelope.is_chat:
            entry["logprobs"] = chat_logprobs(piece.logprobs, self._texts)
        elif piece.logprobs is not None:
            entry["logprobs"] = completion_logprobs(piece.logprobs, piece.offsets or (), self._texts)
        entry |= {"finish_reason": piece.finish_reason, "stop_reason": piece.stop_reason}
        return entry | ({"token_ids": piece.token_ids} if self._envelope.body.return_token_ids else {})

    def _add_prompt_ids(self, fields: dict[str, Any], choice: CompletionChoice, entry: dict[str, Any]) -> None:
        """Prompt ids where vLLM puts them: at the top for a chat, in every choice otherwise."""
        if self._envelope.body.return_token_ids:
            (fields if self._envelope.is_chat else entry)["prompt_token_ids"] = choice.request.prompt

    def _prompt_parts(self, first: CompletionChoice) -> tuple[msgspec.Raw | None, dict[str, bytes] | None]:
        """The prompt's log-probabilities, which its first choice has, and the items of each list of an echo."""
        entries, body, n = first.prompt_logprobs, self._envelope.body, first.request.params.logprobs
        if entries is None:
            return None, None
        listed = None if body.prompt_logprobs is None else prompt_logprobs(entries, body.prompt_logprobs, self._texts)
        if isinstance(body, ChatCompletionRequest) or not body.echo or n is None:
            return listed, None
        detokenizer = first.form.detokenizer(self._texts.tokenizer)
        return listed, echoed_logprobs(first.request.prompt, entries, detokenizer, n, self._texts)

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
        reasons = {"finish_reason": _finish_reason(piece.finish_reason, reader), "stop_reason": piece.stop_reason}
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
        fields = self._chunk_fields | {"choices": [entry]}
        if self._options.continuous_usage_stats:
            fields["usage"] = usage(self._choices)
        elif self._options.include_usage:
            fields["usage"] = None
        if not self._options.include_usage and not self._open and ends:
            fields["metrics"] = speculative_metrics(self._choices, self._texts)
        elif steps := new_steps(choice, self._texts):
            fields["metrics"] = {"speculative_decoding": {"trace": steps}}
        if is_first:
            self._add_prompt_ids(fields, choice, entry)
        if self._options.include_obfuscation:
            missing = -len(encode(fields)) % PADDING
            fields["obfuscation"] = secrets.token_urlsafe(missing + PADDING)[: missing + PADDING]
        return _sse(fields)


def _finish_reason(reason: str | None, reader: AnswerReader) -> str | None:
    """Why the answer ended: its calls, if it called tools and was not cut off."""
    return TOOL_CALLS if reason == STOP and reader.n_calls else reason


def whole_message(reader: AnswerReader, answer: str) -> dict[str, Any]:
    """The message of a complete text; content is null if there are calls and no text."""
    content = reasoning = ""
    calls: list[dict[str, Any]] = []
    for part in (*reader.push(answer), *reader.flush()):
        match part:
            case TextPart(text=text):
                content += text
            case Reasoning(text=text):
                reasoning += text
            case CallBegin(id=call_id, name=name):
                calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}})
            case Arguments(index=index, text=text):
                calls[index]["function"]["arguments"] += text
    message = {"role": "assistant", "content": None if calls and not content else content, "refusal": None}
    message |= {"reasoning_content": reasoning} if reasoning else {}
    return message | ({"tool_calls": calls} if calls else {})


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
