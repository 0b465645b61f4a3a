"""The prompts of benchmarks by kind; usually chat, math and code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from app.inputs.prompts import Question, read_questions
from engine.errors import ConfigError

T = TypeVar("T")
CONVERSATION = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
CHANGES = (
    "Add type hints to this code and change nothing else. Give all of the code.",
    "Rename the arguments of this function to single letters. Give all of the code.",
    "Translate the comments of this code to German and leave the rest as it is.",
    "Make a class with one static method of this function. Give all of the code.",
)
"""What prompts of the kind ``edits`` ask for, in turns."""


class PromptKind(NamedTuple):
    """Where the prompts of a kind are."""

    file: str
    categories: Sequence[str] = ()  # of Spec-Bench
    changes: Sequence[str] = ()  # what is asked for, of the code in the file


KINDS: Mapping[str, PromptKind] = MappingProxyType(
    {
        "chat": PromptKind("spec_bench.jsonl", ("writing", "roleplay", "reasoning", "stem", "humanities", "qa")),
        "math": PromptKind("gsm8k.jsonl"),
        "code": PromptKind("humaneval.jsonl"),
        "scripts": PromptKind("mbpp.jsonl"),
        "classes": PromptKind("classeval.jsonl"),
        "edits": PromptKind("humaneval.jsonl", changes=CHANGES),
        "conversation": PromptKind("spec_bench.jsonl", CONVERSATION),  # this and the next five: Spec-Bench's tasks
        "translation": PromptKind("spec_bench.jsonl", ("translation",)),
        "summarization": PromptKind("spec_bench.jsonl", ("summarization",)),
        "qa": PromptKind("spec_bench.jsonl", ("qa",)),
        "reasoning": PromptKind("spec_bench.jsonl", ("math_reasoning",)),
        "rag": PromptKind("spec_bench.jsonl", ("rag",)),
    }
)
USUAL = ("chat", "math", "code")
TASKS = tuple(kind for kind in KINDS if kind not in ("chat", "edits"))  # Spec-Bench's tasks and the four other files


def questions(
    folder: Path, per_kind: int, kinds: Sequence[str] = USUAL, half: int | None = None
) -> dict[str, list[Question]]:
    """Return the questions of every kind, first turns only, spread evenly over its prompts.

    Args:
        folder: with the files of the kinds.
        per_kind: questions of each kind, at most.
        kinds: keys of ``KINDS``.
        half: 0 or 1: only that half of each kind; None: all of it.

    Raises:
        ConfigError: a prompt file is missing, or has no prompt of a kind.
    """
    found: dict[str, list[Question]] = {}
    for kind in kinds:
        file, categories, changes = KINDS[kind]
        every = [q for q in read_questions(folder / file) if not categories or q.category in categories]
        if not (some := halved(every, half)):
            raise ConfigError(f"{folder / file} has no prompt of the kind {kind}; others are {', '.join(KINDS)}")
        spread = some[:: max(1, len(some) // per_kind)][:per_kind]
        firsts = [question.turns[0] for question in spread]
        asked = [edit(changes, i, text) for i, text in enumerate(firsts)] if changes else firsts
        found[kind] = [Question([text], one.question_id, kind) for text, one in zip(asked, spread, strict=True)]
    return found


def edit(changes: Sequence[str], number: int, code: str) -> str:
    """Return the prompt that asks for one of the changes to some code."""
    return f"{changes[number % len(changes)]}\n\n```python\n{code}\n```"


def halved(every: Sequence[T], half: int | None) -> Sequence[T]:
    """The first half (0) or the second (1); None: all.

    Files are sorted by category. So the second half of ``chat`` is Spec-Bench's short questions (``qa``) alone, and
    that of ``conversation`` is coding, extraction, stem and humanities.
    """
    middle = len(every) // 2
    return every if half is None else every[middle:] if half else every[:middle]
