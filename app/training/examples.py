"""Texts to train on and to hold out: readers of files, and the split by source question."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from app.inputs.prompts import encode_chat, encode_plain, encode_raw
from app.reporting.summaries import loop_start
from engine.errors import ConfigError

FORMS = '{"prompt": .., "answer": ..} (both text or both token ids) or {"messages": [..]} that end with an answer'
NGRAM = 13  # a text that shares an n-gram of this length with a held-out text is not trained on (arXiv 2005.14165)
LEAST = 4  # written tokens of a text


@dataclass(frozen=True)
class Example:
    """A text to train on or to hold out."""

    source: str  # ``source_of`` its question; all texts of one source are on the same side of the split
    tokens: Sequence[int]
    first: int  # tokens from here on count, because the target wrote them; at least 1
    temperature: float | None = None  # of sampling; None: unknown, or another author wrote the text
    is_cut: bool = False  # where it begins to repeat itself

    @property
    def written(self) -> Sequence[int]:
        return self.tokens[self.first :]

    @cached_property
    def tokens_hash(self) -> str:
        return hashlib.sha256(np.asarray(self.tokens, np.int64).tobytes()).hexdigest()[:24]


def source_of(question: str) -> str:
    """A hash of the question without surrounding white space: 64 bits as hexadecimal digits."""
    return hashlib.sha256(question.strip().encode()).hexdigest()[:16]


def most_frequent(examples: Iterable[Example], n: int, vocab_size: int) -> Tensor:
    """The ``n`` most frequent written tokens, of equals the lower id, int64 ``[n]``, ascending."""
    tokens = torch.tensor([token for example in examples for token in example.written])
    counts = torch.bincount(tokens, minlength=vocab_size)
    return counts.sort(descending=True, stable=True).indices[:n].sort().values


class _AnswerLine(msgspec.Struct, frozen=True):
    """A line of a file of answers; other keys are ignored."""

    prompt: str | list[int] | None = None
    answer: str | list[int] | None = None
    messages: list[dict[str, str]] | None = None
    source_hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")] | None = None
    temperature: float | None = None


def read_answers(path: Path, tokenizer: PreTrainedTokenizerFast, vocab_size: int, flag: str) -> list[Example]:
    """The answers of a JSON-lines file; the first line of an ``answers.jsonl`` of ``spectra train`` is skipped.

    Raises ConfigError, which names ``flag`` and the line, if the file cannot be read, or a line has another form.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be read: {error.strerror}") from error
    found = []
    for number, raw in enumerate(lines, start=1):
        if not raw.strip() or (number == 1 and raw.startswith(b'{"settings":')):
            continue
        try:
            example = _example(msgspec.json.decode(raw, type=_AnswerLine), tokenizer)
            if not all(0 <= token < vocab_size for token in example.tokens):
                raise ConfigError(f"a token id is outside the model's vocabulary, 0 to {vocab_size - 1}")
        except (msgspec.DecodeError, ConfigError) as error:
            raise ConfigError(f"{flag} {path}, line {number}: {error}") from error
        found.append(example)
    if not found:
        raise ConfigError(f"{flag} {path} has no lines; it needs at least one line of the form {FORMS}")
    return found


def _example(line: _AnswerLine, tokenizer: PreTrainedTokenizerFast) -> Example:
    match line:
        case _AnswerLine(messages=[*asked, {"role": "assistant", "content": answer}]) if asked:
            question = next((one["content"] for one in asked if one["role"] == "user"), "")
            prompt, ids = encode_chat(tokenizer, asked), _encode_answer(tokenizer, answer)
        case _AnswerLine(prompt=list(prompt), answer=list(ids)) if prompt:
            question = str(prompt)
        case _AnswerLine(prompt=str(question), answer=str(answer)):
            turn = [{"role": "user", "content": question}]
            prompt = encode_chat(tokenizer, turn) if tokenizer.chat_template else encode_raw(tokenizer, question)
            ids = _encode_answer(tokenizer, answer)
        case _:
            raise ConfigError(f"the line must have the form {FORMS}")
    return Example(line.source_hash or source_of(question), [*prompt, *ids], len(prompt), line.temperature)


def _encode_answer(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    ids, end = encode_plain(tokenizer, text), tokenizer.eos_token_id
    return ids if end is None else [*ids, end]


@dataclass(frozen=True, slots=True)
class Split:
    """Both sides of a split, without texts that were left out."""

    train: list[Example]
    held_out: list[Example]
    counts: dict[str, int]  # of each side's texts, their answer tokens, and those cut at loops; of texts left out


def split(examples: Iterable[Example], share: float, longest: int, measured: Sequence[Example] = ()) -> Split:
    """Hold out the texts of about ``share`` of all source questions; raises ConfigError if one side is empty.

    The hash of a source decides its side, so more questions move no source to the other side. A text is cut where it
    begins to repeat itself or after ``longest`` tokens; it is left out if fewer than ``LEAST`` written tokens remain.
    ``measured`` texts are never trained on; if there are any, only they are held out.
    """
    texts, texts_measured = ([_cut(one, longest) for one in some] for some in (examples, measured))
    kept, kept_measured = ([one for one in some if len(one.written) >= LEAST] for some in (texts, texts_measured))
    held = _held_out({example.source for example in (*kept, *kept_measured)}, share)
    held_out = [example for example in (kept_measured if measured else kept) if example.source in held]
    others = [example for example in kept if example.source not in held]
    known = {gram for example in held_out for gram in _grams(example.written)}
    train = [example for example in others if known.isdisjoint(_grams(example.written))]
    n_texts, shared = len(texts) + len(texts_measured), len(others) - len(train)
    short = n_texts - len(kept) - len(kept_measured)
    if not train or not held_out:
        raise ConfigError(
            f"{n_texts} texts leave {len(train)} to train on and {len(held_out)} to hold out (too short: "
            f"{short}, too similar to a held-out text: {shared}); both sides need at least 1; add more questions"
        )
    counts: dict[str, int] = {}
    for name, side in (("train", train), ("held_out", held_out)):
        n_tokens, n_cut = sum(len(one.written) for one in side), sum(one.is_cut for one in side)
        counts |= {name: len(side), f"{name}_tokens": n_tokens, f"{name}_cut_at_loops": n_cut}
    return Split(train, held_out, counts | {"too_short": short, "shared_with_held_out": shared})


def _cut(example: Example, longest: int) -> Example:
    """The text up to where it loops or becomes too long."""
    loop = loop_start(example.written)
    end = longest if loop is None else min(longest, example.first + loop)
    return replace(example, tokens=example.tokens[:end], is_cut=loop is not None and end < longest)


def _held_out(sources: set[str], share: float) -> set[str]:
    """The sources whose hash lies in the first ``share`` of all hashes; of two or more sources at least one."""
    ranked = sorted(sources)  # hexadecimal digits
    return {source for source in ranked if int(source[:8], 16) < share * 2**32} or set(ranked[: len(ranked) // 2][:1])


def _grams(tokens: Sequence[int]) -> set[tuple[int, ...]]:
    return {tuple(tokens[i : i + NGRAM]) for i in range(len(tokens) - NGRAM + 1)}
