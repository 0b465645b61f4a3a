"""The 36 prompts that acceptance is measured on: 12 of chat, 12 of math, 12 of code."""

from __future__ import annotations

from pathlib import Path

from app.inputs.prompts import Question, read_questions

FILES = {"chat": "spec_bench.jsonl", "math": "gsm8k.jsonl", "code": "humaneval.jsonl"}
CHAT_CATEGORIES = ("writing", "roleplay", "reasoning", "stem", "humanities", "qa")


def questions(folder: Path, per_kind: int) -> dict[str, list[Question]]:
    """Kind -> its questions, first turns only, spread evenly over each file.

    Raises:
        ConfigError: a prompt file is missing.
    """
    chosen: dict[str, list[Question]] = {}
    for kind, name in FILES.items():
        every = read_questions(folder / name)
        if kind == "chat":
            every = [question for question in every if question.category in CHAT_CATEGORIES]
        step = max(1, len(every) // per_kind)
        chosen[kind] = [Question(question.turns[:1], question.question_id, kind) for question in every[::step]][
            :per_kind
        ]
    return chosen
