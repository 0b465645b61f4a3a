"""Texts to train on and to hold out: readers of files, and the split by source question."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from app.inputs.prompts import encode_chat, encode_plain, encode_raw
from app.reporting.summaries import loop_start
from engine.errors import ConfigError

FORMS = '{"prompt": .., "answer": ..} (both text or both token ids) or {"messages": [..]} that end with an answer'
NGRAM = 13  # a text that shares an n-gram of this length with a held-out text is not trained on (arXiv 2005.14165)
LEAST = 4  # written tokens of a text


@dataclass(frozen=True, slots=True)
class Example:
    """A text to train on or to hold out."""

    source: str  # ``source_of`` its question; all texts of one source are on the same side of the split
    tokens: Sequence[int]
    first: int  # tokens from here on count, because the target wrote them; at least 1
    temperature: float | None = None  # of sampling; None: unknown, or another author wrote the text

    @property
    def written(self) -> Sequence[int]:
        return self.tokens[self.first :]


def source_of(question: str) -> str:
    """A hash of the question without surrounding white space: 64 bits as hexadecimal digits."""
    return hashlib.sha256(question.strip().encode()).hexdigest()[:16]


def most_frequent(examples: Iterable[Example], n: int, vocab_size: int) -> Tensor:
    """The ``n`` most frequent written tokens, of equals the lower id, int64 ``[n]``, ascending."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for example in examples:
        counts += torch.bincount(torch.tensor(example.written), minlength=vocab_size)
    return counts.sort(descending=True, stable=True).indices[:n].sort().values


class _AnswerLine(msgspec.Struct, frozen=True):
    """A line of a file of answers; other keys are ignored."""

    prompt: str | list[int] | None = None
    answer: str | list[int] | None = None
    messages: list[dict[str, str]] | None = None
    source_hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")] | None = None
    temperature: float | None = None


def read_answers(path: Path, tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> list[Example]:
    """The answers of a JSON-lines file; the first line of an ``answers.jsonl`` of ``spectra train`` is skipped.

    Raises ConfigError, which names the line, if the file cannot be read, or a line has another form.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"--answers {path} cannot be read: {error.strerror}") from error
    found = []
    for number, raw in enumerate(lines, start=1):
        if not raw.strip() or (number == 1 and raw.startswith(b'{"settings":')):
            continue
        try:
            example = _example(msgspec.json.decode(raw, type=_AnswerLine), tokenizer)
            if not all(0 <= token < vocab_size for token in example.tokens):
                raise ConfigError(f"a token id is outside the model's vocabulary, 0 to {vocab_size - 1}")
        except (msgspec.DecodeError, ConfigError) as error:
            raise ConfigError(f"--answers {path}, line {number}: {error}") from error
        found.append(example)
    if not found:
        raise ConfigError(f"--answers {path} has no lines; it needs at least one line of the form {FORMS}")
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
    """Both sides, and how many texts were changed or left out."""

    train: list[Example]
    held_out: list[Example]
    loops: int  # texts that were cut where they begin to repeat themselves
    too_short: int  # texts left out: after all cuts, fewer than ``LEAST`` written tokens
    shared: int  # texts left out of training: they share an n-gram with a held-out text


def split(examples: Iterable[Example], share: float, longest: int, measured: Sequence[Example] = ()) -> Split:
    """Hold out the texts of about ``share`` of all source questions; raises ConfigError if one side is empty.

    The hash of a source decides its side, so more questions move no source to the other side.

    Args:
        share: above 0, below 1.
        longest: tokens of a text; the rest is cut off.
        measured: texts that are never trained on; if there are any, only they are held out.
    """
    counts: Counter[str] = Counter()
    kept, kept_measured = (_prepare(some, longest, counts) for some in (examples, measured))
    held = _held_out({example.source for example in (*kept, *kept_measured)}, share)
    held_out = [example for example in (kept_measured if measured else kept) if example.source in held]
    others = [example for example in kept if example.source not in held]
    known = {gram for example in held_out for gram in _grams(example.written)}
    train = [example for example in others if known.isdisjoint(_grams(example.written))]
    loops, short, shared = counts["loops"], counts["too short"], len(others) - len(train)
    if not train or not held_out:
        raise ConfigError(
            f"{counts['texts']} texts leave {len(train)} to train on and {len(held_out)} to hold out (too short: "
            f"{short}, too similar to a held-out text: {shared}); both sides need at least 1; add more questions"
        )
    return Split(train, held_out, loops, short, shared)


def _prepare(examples: Iterable[Example], longest: int, counts: Counter[str]) -> list[Example]:
    """The texts up to where they loop or become too long, without too short ones; adds to ``counts``."""
    kept = []
    for example in examples:
        loop = loop_start(example.written)
        end = longest if loop is None else min(longest, example.first + loop)
        cut = replace(example, tokens=example.tokens[:end])
        is_kept = len(cut.written) >= LEAST
        counts.update({"texts": 1, "loops": int(loop is not None), "too short": int(not is_kept)})
        kept += [cut] if is_kept else []
    return kept


def _held_out(sources: set[str], share: float) -> set[str]:
    """The sources whose hash lies in the first ``share`` of all hashes; of two or more sources at least one."""
    ranked = sorted(sources)  # hexadecimal digits
    return {source for source in ranked if int(source[:8], 16) < share * 2**32} or set(ranked[: len(ranked) // 2][:1])


def _grams(tokens: Sequence[int]) -> set[tuple[int, ...]]:
    return {tuple(tokens[i : i + NGRAM]) for i in range(len(tokens) - NGRAM + 1)}
