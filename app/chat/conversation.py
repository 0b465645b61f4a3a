"""The state of a conversation, and the bodies of its requests; no I/O."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from app.chat.answers import ChatAnswer
from engine.errors import ConfigError

SEEDS = 1 << 31  # of seeds that are drawn here


@dataclass(slots=True)
class ChatConversation:
    """What was said, and how the next answer is asked for.

    Attributes:
        model: that the server lists.
        method: of speculation; None: the server's default.
        seed: of every answer; None: drawn anew for each.
        temperature: None: the server's default.
        max_tokens: of an answer; None: the server's default.
        trace: ask which source drafted each token.
        messages: of the chat, as they are sent.
    """

    model: str
    method: str | None = None
    seed: int | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    trace: bool = True
    messages: list[dict[str, str]] = field(default_factory=list)

    def body(self, question: str, method: str | None, seed: int, salt: str | None = None) -> dict[str, Any]:
        """A request for the answer to the user's next question. ``salt`` is the request's ``cache_salt``."""
        speculative: dict[str, Any] = {} if method is None else {"method": method}
        if self.trace:
            speculative["trace"] = True
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": [*self.messages, {"role": "user", "content": question}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "seed": seed,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "cache_salt": salt,
        }
        fields = {name: value for name, value in fields.items() if value is not None}
        return fields | ({"speculative": speculative} if speculative else {})

    def next_seed(self) -> int:
        """Of the next answer."""
        return secrets.randbelow(SEEDS) if self.seed is None else self.seed

    def said(self, question: str, answer: ChatAnswer) -> None:
        """Keep a turn, unless nothing of it came."""
        if answer.text:
            self.messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer.text}]

    def last_question(self) -> str | None:
        """The last of the user's; None: there is none."""
        return next((one["content"] for one in reversed(self.messages) if one["role"] == "user"), None)

    def before_last(self) -> ChatConversation:
        """The same conversation, as it was before its last question."""
        return ChatConversation(
            self.model, self.method, self.seed, self.temperature, self.max_tokens, self.trace, self.messages[:-2]
        )


def number(text: str, what: str, least: float, most: float, kind: type[int] | type[float]) -> Any:
    """A number that was typed.

    Raises:
        ConfigError: it is none, or out of range.
    """
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= most:
        raise ConfigError(f"{what} is {text!r}; it must be a number from {least:g} to {most:g}")
    return value
