"""Prompt files: JSON lines, or Parquet rows, in any of three forms, read for every command; and prompts as token ids.

  {"turns": [..]}      questions of one conversation, as in Spec-Bench and SPEED-Bench; each is asked behind the
                       answer to the last
  {"prompt": ..}       one text (or token ids, which only ``spectra load --endpoint completions`` takes)
  {"messages": [..]}   a conversation as the OpenAI API takes it; its last message is asked

``question_id``, ``category`` and ``prediction`` (a text that every answer of the line is expected to be much like) may
stand beside them; further keys are allowed and ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from app.inputs.chat_templates import render_chat
from app.inputs.prompt_lines import records
from engine.errors import ConfigError

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
    """What is asked of a model that runs in this process."""

    turns: list[str]
    question_id: int | str = ""
    category: str = ""
    sub_category: str = ""
    context: list[dict[str, str]] = []  # messages before the first turn
    prediction: str = ""  # a text that every answer is expected to be much like

    @property
    def text(self) -> str:
        """The first turn without a chat template: the messages before it are paragraphs."""
        return "\n\n".join([*(message["content"] for message in self.context), self.turns[0]])


@dataclass(slots=True)
class Conversation:
    """A question being answered turn by turn."""

    question: Question
    messages: list[dict[str, str]] = field(default_factory=list)  # turns asked so far, each with its answer

    @property
    def turn(self) -> int:
        """Index of the turn that is to be answered next."""
        return len(self.messages) // 2

    @property
    def is_over(self) -> bool:
        """Whether every turn has its answer."""
        return self.turn >= len(self.question.turns)

    def ask(self) -> list[dict[str, str]]:
        """What the chat template gets: all messages up to and with the next turn."""
        asked = {"role": "user", "content": self.question.turns[self.turn]}
        return [*self.question.context, *self.messages, asked]

    def answer(self, text: str) -> None:
        """Take the answer to the turn last asked."""
        asked = {"role": "user", "content": self.question.turns[self.turn]}
        self.messages = [*self.messages, asked, {"role": "assistant", "content": text}]


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
        """The line for a model in this process.

        Raises:
            ConfigError: the line holds token ids, or messages that are not texts ending with a user's.
        """
        of_all = (self.question_id, self.category or "", self.sub_category or "")
        if self.messages:
            return Question([_content(self.messages)], *of_all, self.messages[:-1], self.prediction)
        if self.turns:
            return Question(self.turns, *of_all, prediction=self.prediction)
        if not isinstance(self.prompt, str):
            raise ConfigError("has token ids as prompt, which only 'spectra load' takes")
        return Question([self.prompt], *of_all, prediction=self.prediction)

    def body(self, endpoint: str) -> dict[str, Any]:
        """What the line adds to the body of a request; of several turns only the first is asked.

        Raises:
            ConfigError: the endpoint cannot be asked so.
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


def read_questions(path: Path, limit: int | None = None) -> list[Question]:
    """The first ``limit`` (None: all) questions of a file.

    Raises:
        ConfigError: the file cannot be read, is empty, or a line is none of the forms; the message names it.
    """
    return _read(path, Line.question)[:limit]


def read_categories(
    paths: list[Path], limit: int | None, per_category: int | None, *, finer: bool = False
) -> list[Question]:
    """The first ``limit`` questions of every file, of each category the first ``per_category`` (None: all).

    A question without a category has the name of its file as one. ``finer``: each sub-category is one, as
    ``category/sub-category``.

    Raises:
        ConfigError: as ``read_questions`` does.
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
    """The first ``n`` items (None: all) of each category, in their order."""
    taken: Counter[str] = Counter()
    kept = []
    for item in items:
        taken[category(item)] += 1
        if n is None or taken[category(item)] <= n:
            kept.append(item)
    return kept


def read_bodies(path: Path | None, endpoint: str) -> list[dict[str, Any]]:
    """What each line of a file (None: each built-in prompt) adds to the body of a request to ``endpoint``.

    Raises:
        ConfigError: the file cannot be read, is empty, or a line cannot be asked; the message names it.
    """
    if path is None:
        return [Line(prompt=text).body(endpoint) for text in BUILTIN]
    return _read(path, lambda line: line.body(endpoint))


def _read(path: Path, convert: Callable[[Line], T]) -> list[T]:
    found = []
    for where, line in records(path, Line):
        given = [name for name in ("turns", "prompt", "messages") if getattr(line, name)]
        try:
            if len(given) != 1:
                none = " and ".join(given) or "none"
                raise ConfigError(f"has {none} of turns, prompt, messages; it needs exactly one")
            found.append(convert(line))
        except ConfigError as error:
            raise ConfigError(f"--prompts {path}, {where} {error}") from error
    if not found:
        raise ConfigError(f"--prompts {path} has no lines; it needs at least one prompt")
    return found


def _content(messages: list[dict[str, Any]]) -> str:
    """The text of the last message, which is a user's."""
    for message in messages:
        if not isinstance(message.get("content"), str) or not isinstance(message.get("role"), str):
            raise ConfigError('has a message that is not {"role": .., "content": ..} with texts')
    if messages[-1]["role"] != "user":
        raise ConfigError(f"has messages that end with role {messages[-1]['role']!r}; the last must be the user's")
    return str(messages[-1]["content"])


def encode_chat(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]]) -> list[int]:
    """Token ids of a conversation; the chat template writes all special tokens itself.

    Raises:
        ConfigError: the tokenizer has no chat template, or one that refuses the messages.
    """
    if not tokenizer.chat_template:
        raise ConfigError("the model has no chat template: use --raw")
    text = render_chat(tokenizer, messages, prompt=True, origin=f"{tokenizer.name_or_path} (--raw uses no template)")
    return list(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)


def encode_prediction(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Token ids of a text that an answer is expected to be much like."""
    return list(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids) if text else []


def encode_raw(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Token ids of a text with the tokenizer's own special tokens."""
    return list(tokenizer.backend_tokenizer.encode(text, add_special_tokens=True).ids)
