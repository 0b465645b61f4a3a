"""Prompts by kind, as token ids."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.inputs.prompts import BUILTIN, encode_chat
from app.inputs.tokenizers import load_tokenizer
from app.speculation.calibration_prompts import PROMPTS
from benchmarks.support.prompt_sets import CHANGES, edit, halved, questions

RANDOM, CHAT, CODE, SUMMARISING, EDITS = "random", "chat", "code", "summarising", "edits"
KINDS = (RANDOM, CHAT, CODE, SUMMARISING, EDITS)
LONGEST = 1500  # characters of a prompt: reading thousands of tokens would hide the cost of decoding
RANDOM_TOKENS = 96  # of a prompt of random tokens
SUMMARIES = (0, 2, 7)  # packaged prompts that ask for a shorter text; the others ask for a changed one


def prompts_of(
    kinds: Sequence[str], folder: Path | None, model: Path, most: int, half: int | None = None
) -> dict[str, Sequence[list[int]]]:
    """Return the prompts by kind, as ids of the model's tokenizer.

    Args:
        kinds: of ``KINDS``.
        folder: with spec_bench.jsonl and humaneval.jsonl; None: packaged prompts, few of each kind.
        model: checkpoint directory.
        most: prompts of a kind.
        half: 0 or 1: only that half of each kind; None: all of it.

    Raises:
        ConfigError: a prompt file is missing, or the model has no chat template.
    """
    texts = _packaged(half) if folder is None else _of_files(folder, most, half)
    tokenizer = load_tokenizer(model)
    found: dict[str, Sequence[list[int]]] = {}
    for kind in kinds:
        if kind == RANDOM:
            found[kind] = _random(len(tokenizer), most, half)
        else:
            chats = ([{"role": "user", "content": text[:LONGEST]}] for text in texts[kind][:most])
            found[kind] = [encode_chat(tokenizer, chat) for chat in chats]
    return found


def _random(vocab_size: int, n: int, half: int | None) -> Sequence[list[int]]:
    chance = random.Random(0)
    prompts = [[chance.randrange(5, vocab_size) for _ in range(RANDOM_TOKENS)] for _ in range(2 * n)]
    return halved(prompts, half)[:n]


def _packaged(half: int | None) -> Mapping[str, Sequence[str]]:
    code = [text for text in BUILTIN if "Python" in text or "class" in text]
    every = {
        CHAT: [text for text in BUILTIN if text not in code],
        CODE: code,
        SUMMARISING: [PROMPTS[i] for i in SUMMARIES],
        EDITS: [text for i, text in enumerate(PROMPTS) if i not in SUMMARIES],
    }
    return {kind: halved(texts, half) for kind, texts in every.items()}


def _of_files(folder: Path, most: int, half: int | None) -> Mapping[str, list[str]]:
    mixed = questions(folder, most, half=half)
    summaries = questions(folder, most, ("summarization",), half)
    code = [question.text for question in mixed["code"]]
    return {
        CHAT: [question.text for question in mixed["chat"]],
        CODE: code,
        SUMMARISING: [question.text for question in summaries["summarization"]],
        EDITS: [edit(CHANGES, i, text) for i, text in enumerate(code)],
    }
