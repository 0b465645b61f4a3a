"""Texts that were not written by our engine for this training: answers from elsewhere, and plain text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from transformers import PreTrainedTokenizerFast

from app.inputs.prompts import encode_chat, encode_raw
from app.inputs.text_index import as_text
from app.training.data.examples import Example, source_of
from engine.errors import ConfigError
from retrieval_store.snapshots.corpus import CorpusError, Document, read_documents

FORMS = '{"prompt": .., "answer": ..} (texts or token ids both) or {"messages": [..]} that end with an answer'


class _AnswerLine(msgspec.Struct, frozen=True):
    """A line of a file of answers; further keys are allowed and ignored."""

    prompt: str | list[int] | None = None
    answer: str | list[int] | None = None
    messages: list[dict[str, str]] | None = None
    source_hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")] | None = None
    temperature: float | None = None


def read_answers(path: Path, tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> list[Example]:
    """Answers of a JSON-lines file; a first line that is no answer, as in files of our own, is passed over.

    Raises:
        ConfigError: the file cannot be read, or a line is none of the forms; the message names it.
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
                raise ConfigError(f"has a token outside the model's vocabulary, 0 to {vocab_size - 1}")
        except (msgspec.DecodeError, ConfigError) as error:
            raise ConfigError(f"--answers {path}, line {number}: {error}") from error
        found.append(example)
    if not found:
        raise ConfigError(f"--answers {path} has no lines; it needs at least one of {FORMS}")
    return found


def _example(line: _AnswerLine, tokenizer: PreTrainedTokenizerFast) -> Example:
    if line.messages and line.messages[-1].get("role") == "assistant" and len(line.messages) > 1:
        prompt = encode_chat(tokenizer, line.messages[:-1])
        asked = next((one["content"] for one in line.messages if one["role"] == "user"), "")
        return _joined(prompt, _ids(tokenizer, line.messages[-1]["content"], tokenizer.eos_token_id), asked, line)
    if isinstance(line.prompt, list) and isinstance(line.answer, list) and line.prompt:
        return _joined(line.prompt, line.answer, str(line.prompt), line)
    if isinstance(line.prompt, str) and isinstance(line.answer, str):
        turn = [{"role": "user", "content": line.prompt}]
        prompt = encode_chat(tokenizer, turn) if tokenizer.chat_template else encode_raw(tokenizer, line.prompt)
        return _joined(prompt, _ids(tokenizer, line.answer, tokenizer.eos_token_id), line.prompt, line)
    raise ConfigError(f"is none of {FORMS}")


def _joined(prompt: list[int], answer: list[int], question: str, line: _AnswerLine) -> Example:
    return Example(line.source_hash or source_of(question), [*prompt, *answer], len(prompt), line.temperature)


def _ids(tokenizer: PreTrainedTokenizerFast, text: str, end: int | None) -> list[int]:
    ids = list(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)
    return ids if end is None else [*ids, end]


def read_texts(path: Path, tokenizer: PreTrainedTokenizerFast, vocab_size: int, longest: int) -> Iterator[Example]:
    """Texts of a file or folder, all of whose tokens count, in pieces of at most ``longest`` tokens.

    Conversations are as the chat template writes them. Texts with tokens outside the vocabulary are passed over.

    Raises:
        ConfigError: a file cannot be read, or the chat template refuses a conversation.
    """
    try:
        for document in read_documents(path):
            source = source_of(_asked(document))
            text = as_text(document, tokenizer)
            tokens = _ids(tokenizer, text, None) if document.messages else encode_raw(tokenizer, text)
            if all(token < vocab_size for token in tokens):
                for begin in range(0, len(tokens), longest):
                    yield Example(source, tokens[begin : begin + longest], 1)
    except CorpusError as error:
        raise ConfigError(f"--texts {error}") from error


def _asked(document: Document) -> str:
    return next((message.content for message in document.messages if message.role == "user"), document.text)
