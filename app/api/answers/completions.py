"""The bodies of chat and text completions: whole ones, and the parts of streamed chunks."""

from __future__ import annotations

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
from app.api.answers.speculation import speculative_metrics
from app.api.choice import ChoiceDelta, CompletionChoice, count_prompt_tokens
from app.api.requests.schemas import ChatCompletionRequest, CompletionRequest
from app.api.tools.answer import AnswerReader, Arguments, CallBegin, Reasoning, TextPart
from engine.events import STOP

TOOL_CALLS = "tool_calls"  # the finish reason of an answer that ended with its calls
encode = msgspec.json.Encoder().encode


class Envelope(msgspec.Struct, frozen=True):
    """Fields that all parts of one response share."""

    id: str
    created: int  # seconds since 1970
    body: ChatCompletionRequest | CompletionRequest
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


def choice_fields(
    envelope: Envelope, choice: CompletionChoice, piece: ChoiceDelta, texts: TokenTexts
) -> dict[str, Any]:
    """Fields of a choice, in chunks and whole responses alike, except its text."""
    fields: dict[str, Any] = {"index": choice.index, "logprobs": None}
    if piece.logprobs is not None:
        if envelope.is_chat:
            fields["logprobs"] = chat_logprobs(piece.logprobs, texts)
        else:
            fields["logprobs"] = completion_logprobs(piece.logprobs, piece.offsets or (), texts)
    fields["finish_reason"] = piece.finish_reason
    fields["stop_reason"] = piece.stop_reason
    if envelope.body.return_token_ids:
        fields["token_ids"] = piece.token_ids
    return fields


def finish_reason(reason: str | None, reader: AnswerReader) -> str | None:
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


def whole_response(
    envelope: Envelope, done: Sequence[tuple[CompletionChoice, ChoiceDelta]], texts: TokenTexts
) -> bytes:
    """A response without streaming, as JSON; ``done`` holds each choice with its pieces joined."""
    fields = envelope.fields(chunk=False)
    fields["choices"] = entries = []
    listed = echoed = None
    for choice, piece in done:
        if choice.request.params.choice == 0:  # the next ones have the same prompt
            listed, echoed = _prompt_parts(envelope, choice, texts)
        entry = choice_fields(envelope, choice, piece, texts)
        reader = choice.form.reader()
        if reader is not None:
            entry["message"] = whole_message(reader, piece.text)
            entry["finish_reason"] = finish_reason(piece.finish_reason, reader)
        elif envelope.is_chat:
            entry["message"] = {"role": "assistant", "content": piece.text, "refusal": None}
        else:
            entry["text"] = piece.text
        if listed is not None:
            holder = fields if envelope.is_chat else entry  # where vLLM puts them
            holder["prompt_logprobs"] = listed
        if echoed is not None:
            entry["logprobs"] = behind_echo(echoed, entry["logprobs"])
        entries.append(entry)
    choices = [choice for choice, _ in done]
    fields["usage"] = usage(choices)
    fields["metrics"] = speculative_metrics(choices, texts)
    add_prompt_ids(fields, envelope, choices, entries)
    return encode(fields)


def _prompt_parts(
    envelope: Envelope, first: CompletionChoice, texts: TokenTexts
) -> tuple[msgspec.Raw | None, dict[str, bytes] | None]:
    """The prompt's log-probabilities, which its first choice has, and the items of each list of an echo."""
    entries, prompt, n = first.prompt_logprobs, first.request.prompt, first.request.params.logprobs
    if entries is None:
        return None, None
    body = envelope.body
    listed = None if body.prompt_logprobs is None else prompt_logprobs(entries, body.prompt_logprobs, texts)
    if isinstance(body, ChatCompletionRequest) or not body.echo or n is None:
        return listed, None
    return listed, echoed_logprobs(prompt, entries, first.form.detokenizer(texts.tokenizer), n, texts)


def add_prompt_ids(
    fields: dict[str, Any], envelope: Envelope, choices: Sequence[CompletionChoice], entries: list[dict[str, Any]]
) -> None:
    """Prompt ids where vLLM puts them: at the top for a chat, in every choice otherwise."""
    if not envelope.body.return_token_ids:
        return
    if envelope.is_chat:
        fields["prompt_token_ids"] = choices[0].request.prompt
    else:
        for choice, entry in zip(choices, entries, strict=True):
            entry["prompt_token_ids"] = choice.request.prompt
