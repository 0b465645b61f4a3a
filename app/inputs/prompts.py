"""Reads prompt files for every command, and tokenises prompts.

A file holds JSON lines or Parquet rows, each in one of three forms:

  {"turns": [..]}      questions of one conversation, as in Spec-Bench and SPEED-Bench; each is asked after the answer
                       to the previous one
  {"prompt": ..}       one text (or token ids, which only ``spectra load --endpoint completions`` takes)
  {"messages": [..]}   a conversation in the form of the OpenAI API; its last message is asked

``question_id``, ``category`` and ``prediction`` (a text that every answer is expected to resemble) are optional; other
keys are ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from app.inputs.chat_templates import render_chat
from engine.errors import ConfigError, require_extra

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

T = TypeVar("T")

CHAT, COMPLETIONS = "chat", "completions"  # endpoints
BUILTIN = (
    "Write a Python function that checks whether a string is a palindrome.",
    "Write a story about a fox that finds a lantern.",
    "Give me three tips for sleeping better.",
    "Mary is 73 years old and lives in Paris. Write her name, age and city as JSON.",
    "Write a short poem about rivers.",
    "What is a volcano?",
    "Write a short letter to a friend about a trip to the sea.",
    "Write a Python class for a bank account with deposit and withdraw methods.",
)


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """A conversation to hold with a model that runs in this process."""

    turns: list[str]
    question_id: int | str = ""
    category: str = ""
    sub_category: str = ""
    context: list[dict[str, str]] = []  # messages before the first turn
    prediction: str = ""  # a text that every answer is expected to resemble

    @property
    def text(self) -> str:
        """The first turn without a chat template: the messages before it are paragraphs."""
        return "\n\n".join([*(message["content"] for message in self.context), self.turns[0]])


@dataclass(slots=True)
class Conversation:
    """A question that is answered turn by turn."""

    question: Question
    messages: list[dict[str, str]] = field(default_factory=list)  # the turns so far, each with its answer

    @property
    def turn(self) -> int:
        return len(self.messages) // 2

    @property
    def is_over(self) -> bool:
        return self.turn >= len(self.question.turns)

    def ask(self) -> list[dict[str, str]]:
        return [*self.question.context, *self.messages, {"role": "user", "content": self.question.turns[self.turn]}]

    def answer(self, text: str) -> None:
        self.messages = [*self.ask()[len(self.question.context) :], {"role": "assistant", "content": text}]


class Line(msgspec.Struct, frozen=True):
    """One line of a prompt file."""

    turns: list[str] | None = None
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    question_id: int | str = ""
    category: str | None = ""
    sub_category: str | None = ""  # SPEED-Bench's
    prediction: str = ""

    def question(self) -> Question:
        """Return the line as a question for a model in this process.

        Raises ConfigError if the prompt is token ids, or the messages are not texts that end with a user's.
        """
        turns, context = self.turns, self.messages[:-1] if self.messages else []
        if self.messages:
            turns = [_last_content(self.messages)]
        elif not turns:
            if not isinstance(self.prompt, str):
                raise ConfigError("has token ids as prompt, which only 'spectra load' takes")
            turns = [self.prompt]
        category, finer = self.category or "", self.sub_category or ""
        return Question(turns, self.question_id, category, finer, context, self.prediction)

    def body(self, endpoint: str) -> dict[str, Any]:
        """Return the fields that the line adds to the body of a request; only the first of several turns is asked.

        Raises ConfigError if the endpoint does not take this form.
        """
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


def _last_content(messages: list[dict[str, Any]]) -> str:
    for message in messages:
        if not isinstance(message.get("content"), str) or not isinstance(message.get("role"), str):
            raise ConfigError('has a message that is not {"role": .., "content": ..} with texts')
    if messages[-1]["role"] != "user":
        raise ConfigError(f"has messages that end with role {messages[-1]['role']!r}; the last must be the user's")
    return str(messages[-1]["content"])


def read_questions(path: Path, limit: int | None = None) -> list[Question]:
    """Return the first ``limit`` (None: all) questions of a file.

    Raises ConfigError, which names the line, if the file cannot be read, is empty, or a line has none of the forms.
    """
    return _read(path, Line.question)[:limit]


def read_categories(
    paths: list[Path], limit: int | None, per_category: int | None, *, finer: bool = False
) -> list[Question]:
    """Return the first ``per_category`` questions (None: all) of each category, of the first ``limit`` of each file.

    The name of its file is the category of a question without one. With ``finer``, a category is
    ``category/sub-category``. Raises ConfigError as ``read_questions``.
    """

    def named(question: Question, path: Path) -> str:
        finest = question.sub_category if finer else ""
        return "/".join(filter(None, (question.category or path.stem, finest)))

    questions = [
        msgspec.structs.replace(question, category=named(question, path))
        for path in paths
        for question in read_questions(path, limit)
    ]
    return first_of_each(questions, lambda question: question.category, per_category)


def first_of_each(items: Iterable[T], category: Callable[[T], str], n: int | None) -> list[T]:
    """Return the first ``n`` items (None: all) of each category, in their order."""
    taken: Counter[str] = Counter()
    kept = []
    for item in items:
        taken[category(item)] += 1
        if n is None or taken[category(item)] <= n:
            kept.append(item)
    return kept


def read_bodies(path: Path | None, endpoint: str) -> list[dict[str, Any]]:
    """Return the fields that each line of a file (None: each built-in prompt) adds to a request to ``endpoint``.

    Raises ConfigError as ``read_questions``, and if the endpoint does not take a line.
    """
    if path is None:
        return [Line(prompt=text).body(endpoint) for text in BUILTIN]
    return _read(path, lambda line: line.body(endpoint))


def _read(path: Path, convert: Callable[[Line], T]) -> list[T]:
    """Return the converted lines of a file; raise ConfigError, which names the line, if one is wrong."""
    found = []
    for where, record in _rows(path) if path.suffix == ".parquet" else _lines(path):
        try:
            line = msgspec.json.decode(record, type=Line) if isinstance(record, str) else msgspec.convert(record, Line)
            given = [name for name in ("turns", "prompt", "messages") if getattr(line, name)]
            if len(given) != 1:
                has = " and ".join(given) or "none"
                raise ConfigError(f"has {has} of turns, prompt, messages; it needs exactly one")
            found.append(convert(line))
        except ConfigError as error:
            raise ConfigError(f"--prompts {path}, {where} {error}") from error
        except msgspec.DecodeError as error:
            raise ConfigError(f"--prompts {path}, {where}: {error}") from error
    if not found:
        raise ConfigError(f"--prompts {path} has no lines; it needs at least one prompt")
    return found


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    # Not ``splitlines``: it also splits at characters that JSON strings may contain.
    for number, line in enumerate(read_text(path, "--prompts").split("\n"), start=1):
        if line.strip():
            yield f"line {number}", line


def _rows(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield rows without the columns that have no value."""
    require_extra("parquet", f"--prompts {path}")
    import duckdb

    try:
        with duckdb.connect() as session:
            table = session.read_parquet(str(path))
            columns, rows = table.columns, table.fetchall()
    except duckdb.Error as error:
        raise ConfigError(f"--prompts {path} cannot be read: {str(error).splitlines()[0]}") from error
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", {name: value for name, value in zip(columns, row, strict=True) if value is not None}


def read_text(path: Path, flag: str) -> str:
    """Return the text of a file in UTF-8, without a byte order mark; errors name ``flag``."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{flag} {path} is not UTF-8: {error}") from error


def encode_chat(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]]) -> list[int]:
    """Return the token ids of a conversation; all special tokens come from the chat template.

    Raises ConfigError if the tokenizer has no chat template, or the template fails on the messages.
    """
    if not tokenizer.chat_template:
        raise ConfigError("the model has no chat template: use --raw")
    origin = f"{tokenizer.name_or_path} (--raw uses no template)"
    return encode_plain(tokenizer, render_chat(tokenizer, messages, prompt=True, origin=origin))


def encode_plain(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Return the token ids of a text without special tokens."""
    return list(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)


def encode_raw(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Return the token ids of a text with the tokenizer's own special tokens."""
    return list(tokenizer.backend_tokenizer.encode(text, add_special_tokens=True).ids)
