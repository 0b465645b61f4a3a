"""The prompts of benchmarks: by default 36, of which 12 are chat, 12 math and 12 code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from app.inputs.prompts import Question, read_questions

FILES = {"chat": "spec_bench.jsonl", "math": "gsm8k.jsonl", "code": "humaneval.jsonl"}
CHAT_CATEGORIES = ("writing", "roleplay", "reasoning", "stem", "humanities", "qa")


def questions(folder: Path, per_kind: int, categories: Sequence[str] = ()) -> dict[str, list[Question]]:
    """Kind -> its questions, first turns only, spread evenly over each file.

    Args:
        folder: with spec_bench.jsonl, gsm8k.jsonl and humaneval.jsonl.
        per_kind: questions of each kind, at most.
        categories: of Spec-Bench, to be the kinds instead of chat, math and code.

    Raises:
        ConfigError: a prompt file is missing.
    """
    found = {kind: read_questions(folder / name) for kind, name in FILES.items() if not categories or kind == "chat"}
    kinds: dict[str, tuple[str, ...]] = {category: (category,) for category in categories} or {"chat": CHAT_CATEGORIES}
    asked = {kind: [q for q in found["chat"] if q.category in wanted] for kind, wanted in kinds.items()}
    every = asked if categories else found | asked
    return {kind: [_first_turn(q, kind) for q in _spread(some, per_kind)] for kind, some in every.items()}


def _spread(every: Sequence[Question], n: int) -> Sequence[Question]:
    return every[:: max(1, len(every) // n)][:n]


def _first_turn(question: Question, kind: str) -> Question:
    return Question(question.turns[:1], question.question_id, kind)
