"""The prompts of benchmarks: by default 36, of which 12 are chat, 12 math and 12 code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from app.inputs.prompts import Question, read_questions

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
    folder: Path, per_kind: int, categories: Sequence[str] = (), files: Sequence[str] = USUAL, offset: int = 0
) -> dict[str, list[Question]]:
    """Kind -> its questions, first turns only, spread evenly over each file.

    Args:
        folder: with the files of ``FILES`` that are asked for.
        per_kind: questions of each kind, at most.
        categories: of Spec-Bench, to be the kinds instead of ``files``.
        files: kinds, keys of ``FILES``.
        offset: of the first question in its file; another one gives other questions, as long as files have enough.

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
    return {kind: [_first_turn(q, kind) for q in _spread(some, per_kind, offset)] for kind, some in every.items()}


def _spread(every: Sequence[Question], n: int, offset: int) -> Sequence[Question]:
    return every[offset :: max(1, len(every) // n)][:n]


def _first_turn(question: Question, kind: str) -> Question:
    return Question(question.turns[:1], question.question_id, kind)
