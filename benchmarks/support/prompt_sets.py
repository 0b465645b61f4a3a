"""The prompts of benchmarks by kind; usually chat, math and code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from app.inputs.prompts import Question, read_questions

T = TypeVar("T")
CONVERSATION = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


class PromptKind(NamedTuple):
    """Where the prompts of a kind are."""

    file: str
    categories: Sequence[str] = ()  # of Spec-Bench


KINDS: Mapping[str, PromptKind] = MappingProxyType(
    {
        "chat": PromptKind("spec_bench.jsonl", ("writing", "roleplay", "reasoning", "stem", "humanities", "qa")),
        "math": PromptKind("gsm8k.jsonl"),
        "code": PromptKind("humaneval.jsonl"),
        "scripts": PromptKind("mbpp.jsonl"),
        "classes": PromptKind("classeval.jsonl"),
        "conversation": PromptKind("spec_bench.jsonl", CONVERSATION),  # and the next five: Spec-Bench's tasks
        "translation": PromptKind("spec_bench.jsonl", ("translation",)),
        "summarization": PromptKind("spec_bench.jsonl", ("summarization",)),
        "qa": PromptKind("spec_bench.jsonl", ("qa",)),
        "reasoning": PromptKind("spec_bench.jsonl", ("math_reasoning",)),
        "rag": PromptKind("spec_bench.jsonl", ("rag",)),
    }
)
USUAL = ("chat", "math", "code")
TASKS = tuple(kind for kind in KINDS if kind != "chat")  # the tasks of Spec-Bench, and the four other files


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
        ConfigError: a prompt file is missing.
    """
    found: dict[str, list[Question]] = {}
    for kind in kinds:
        file, categories = KINDS[kind]
        every = [q for q in read_questions(folder / file) if not categories or q.category in categories]
        some = halved(every, half)
        spread = some[:: max(1, len(some) // per_kind)][:per_kind]
        found[kind] = [Question(question.turns[:1], question.question_id, kind) for question in spread]
    return found


def halved(every: Sequence[T], half: int | None) -> Sequence[T]:
    """The first half (0) or the second (1); None: all."""
    middle = len(every) // 2
    return every if half is None else every[middle:] if half else every[:middle]
