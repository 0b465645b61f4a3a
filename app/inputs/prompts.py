"""Prompt files in Spec-Bench's form, and prompts as token ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class Question(msgspec.Struct, frozen=True):
    """One line of a prompt file; further keys are allowed there and ignored."""

    turns: list[str]
    question_id: int | str = ""
    category: str = ""


@dataclass(slots=True)
class Conversation:
    """A question being answered turn by turn."""

    question: Question
    messages: list[dict[str, str]]  # what the chat template gets

    @property
    def turn(self) -> int:
        """Index of the turn that is to be answered next."""
        return len(self.messages) // 2

    @property
    def is_over(self) -> bool:
        """Whether every turn has its answer."""
        return self.turn >= len(self.question.turns)

    def ask(self) -> list[dict[str, str]]:
        """The messages up to and with the next question."""
        return [*self.messages, {"role": "user", "content": self.question.turns[self.turn]}]

    def answer(self, text: str) -> None:
        """Take the answer to the question last asked."""
        self.messages = [*self.ask(), {"role": "assistant", "content": text}]


def read_questions(path: Path, limit: int | None = None) -> list[Question]:
    """The questions of a JSONL file.

    Raises:
        ConfigError: the file cannot be read, or a line is not of the form; the message names it.
    """
    questions: list[Question] = []
    try:
        # Lines end with newlines only: JSON strings may hold what else ``splitlines`` takes for an end.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError(f"--prompts {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--prompts {path} is not UTF-8: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            question = msgspec.json.decode(line, type=Question)
        except msgspec.DecodeError as error:
            raise ConfigError(f"--prompts {path}, line {number}: {error}") from error
        if not question.turns:
            raise ConfigError(f"--prompts {path}, line {number}: turns is empty; it needs at least one")
        questions.append(question)
    return questions[:limit]


def encode_chat(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]]) -> list[int]:
    """Ids of a conversation; the chat template writes all special tokens itself.

    Raises:
        ConfigError: the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise ConfigError("the model has no chat template: use --raw")
    text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    return list(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)


def encode_raw(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Ids of a text with the tokenizer's own special tokens."""
    return list(tokenizer.backend_tokenizer.encode(text, add_special_tokens=True).ids)
