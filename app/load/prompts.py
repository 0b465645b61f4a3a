"""Prompts of a load: lines of a file in any of three forms, or a few built-in ones; nothing is tokenised here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from engine.errors import ConfigError

CHAT, COMPLETIONS = "chat", "completions"
BUILTIN = (
    "Write a Python function that merges two sorted lists.",
    "Explain what a hash table is and when to use one.",
    "Natalia sold 48 clips in April and half as many in May. How many did she sell altogether?",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Implement a class for a bank account with deposit and withdraw methods.",
    "A train travels 60 miles in 1.5 hours. What is its average speed?",
    "What are the advantages of a balanced diet?",
    "Write a Python function that counts the words of a text file.",
)


class Line(msgspec.Struct, frozen=True):
    """One line of a prompt file: exactly one of the three; other keys are allowed and skipped."""

    turns: list[str] | None = None  # Spec-Bench; only the first is asked
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None

    def fields(self, endpoint: str) -> dict[str, Any]:
        """What it adds to a request's body.

        Raises:
            ConfigError: the endpoint cannot be asked so.
        """
        given = [name for name in ("turns", "prompt", "messages") if getattr(self, name)]
        if len(given) != 1:
            raise ConfigError(f"has {' and '.join(given) or 'none'} of turns, prompt, messages; it needs exactly one")
        if self.messages:
            if endpoint != CHAT:
                raise ConfigError("has messages, which only --endpoint chat takes")
            return {"messages": self.messages}
        prompt = self.turns[0] if self.turns else self.prompt
        if endpoint == COMPLETIONS:
            return {"prompt": prompt}
        if not isinstance(prompt, str):
            raise ConfigError("has token ids as prompt, which only --endpoint completions takes")
        return {"messages": [{"role": "user", "content": prompt}]}


def prompts_of(path: Path | None, endpoint: str) -> list[dict[str, Any]]:
    """What each line of a JSONL file (None: each built-in prompt) adds to a body.

    Raises:
        ConfigError: the file cannot be read, is empty, or a line cannot be asked; the message names it.
    """
    if path is None:
        return [Line(prompt=text).fields(endpoint) for text in BUILTIN]
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # not splitlines: strings may hold its other ends
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts {path} cannot be read: {error}") from error
    found = [_fields(path, n, line, endpoint) for n, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise ConfigError(f"--prompts {path} has no lines; it needs at least one prompt")
    return found


def _fields(path: Path, number: int, line: str, endpoint: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=Line).fields(endpoint)
    except msgspec.DecodeError as error:
        raise ConfigError(f"--prompts {path}, line {number}: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"--prompts {path}, line {number} {error}") from error
