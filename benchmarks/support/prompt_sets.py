"""The prompts of benchmarks: by default 36, of which 12 are chat, 12 math and 12 code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from app.inputs.prompts import Question, read_questions

T = TypeVar("T")
FILES = {
    "chat": "spec_bench.jsonl",
    "math": "gsm8k.jsonl",
    "code": "humaneval.jsonl",
    "classes": "classeval.jsonl",
    "scripts": "mbpp.jsonl",
}
USUAL = ("chat", "math", "code")
CHAT_CATEGORIES = ("writing", "roleplay", "reasoning", "stem", "humanities", "qa")


def questions(
    folder: Path,
    per_kind: int,
    categories: Sequence[str] = (),
    files: Sequence[str] = USUAL,
    offset: int = 0,
    half: int | None = None,
) -> dict[str, list[Question]]:
    """Kind -> its questions, first turns only, spread evenly over each file.

    Args:
        folder: with the files of ``FILES`` that are asked for.
        per_kind: questions of each kind, at most.
        categories: of Spec-Bench, to be the kinds instead of ``files``.
        files: kinds, keys of ``FILES``.
        offset: of the first question in its file; another one gives other questions, as long as files have enough.
        half: 0 or 1: only that half of each kind; None: all of it.

    Raises:
        ConfigError: a prompt file is missing.
    """
    found = {kind: read_questions(folder / FILES[kind]) for kind in (("chat",) if categories else files)}
    if categories:
        every = {category: [q for q in found["chat"] if q.category == category] for category in categories}
    else:
        every = {
            kind: [q for q in some if kind != "chat" or q.category in CHAT_CATEGORIES] for kind, some in found.items()
        }
    return {
        kind: [_first_turn(q, kind) for q in _spread(halved(some, half), per_kind, offset)]
        for kind, some in every.items()
    }


def halved(every: Sequence[T], half: int | None) -> Sequence[T]:
    """The first half (0) or the second (1); None: all."""
    middle = len(every) // 2
    return every if half is None else every[middle:] if half else every[:middle]


def _spread(every: Sequence[Question], n: int, offset: int) -> Sequence[Question]:
    return every[offset :: max(1, len(every) // n)][:n]


def _first_turn(question: Question, kind: str) -> Question:
    return Question(question.turns[:1], question.question_id, kind)
