"""Reads recorded answers from logs, splits them into history and test, and tokenises them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from app.inputs.prompts import encode_plain
from app.inputs.text_index import conversation
from engine.errors import ConfigError
from retrieval_store.snapshots.corpus import MESSAGE_FORMS, CorpusError, Document, read_documents

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One recorded answer, with all messages before it as its prompt."""

    index: int  # of the conversation
    turn: int
    prompt: list[int]
    answer: list[int]  # includes the tokenizer's end-of-text token
    question_id: int | str
    category: str
    prediction: Sequence[int] = ()  # a text that the answer was expected to resemble


def read_logs(paths: Iterable[Path], source: str | None, flag: str) -> list[Document]:
    """Return the conversations of several files, only those of ``source`` if it is given.

    Raises ConfigError, which names ``flag``, if a file cannot be read, a line has no answer, or none is left.
    """
    found: list[Document] = []
    for path in paths:
        if path.is_dir() or path.suffix != ".jsonl":
            raise ConfigError(f"{flag} is {path}; it must be JSON-lines files (.jsonl)")
        try:
            for document in read_documents(path):
                category = document.category or document.source or path.stem
                found.append(msgspec.structs.replace(document, category=category))
        except CorpusError as error:
            raise ConfigError(f"{flag} {error}") from error
    for document in found:
        if not any(message.role == ASSISTANT for message in document.messages[1:]):
            raise ConfigError(f"{flag} {document.origin} has no answer; a line must be one of {MESSAGE_FORMS}")
    kept = [document for document in found if source in (None, document.source)]
    if not kept:
        known = ", ".join(sorted({document.source for document in found if document.source}))
        raise ConfigError(f"{flag}: no conversation is left of {len(found)}; sources in the files: {known or 'none'}")
    return kept


def split(documents: Sequence[Document], fraction: float) -> tuple[list[Document], list[Document]]:
    """Return (history, test): ``fraction`` of all distinct prompts, evenly spread, and the others.

    Conversations with the same first message go to the same side, so that no test question is in the history.
    """
    prompts = list(dict.fromkeys(document.messages[0].content for document in documents))
    # The small amount corrects rounding: 0.7 * 10 may be slightly less than 7.
    is_history = {prompt: int((i + 1) * fraction + 1e-9) > int(i * fraction + 1e-9) for i, prompt in enumerate(prompts)}
    history = [document for document in documents if is_history[document.messages[0].content]]
    test = [document for document in documents if not is_history[document.messages[0].content]]
    return history, test


def encode(tokenizer: PreTrainedTokenizerFast, documents: Sequence[Document], what: str) -> list[RecordedTurn]:
    """Return every answer of the conversations, tokenised; ``what`` names them in errors.

    Raises ConfigError if the chat template fails on a conversation, or no answer has a token.
    """
    turns: list[RecordedTurn] = []
    for index, document in enumerate(documents):
        predicted = encode_plain(tokenizer, document.prediction)
        for turn, place in enumerate(p for p, m in enumerate(document.messages) if p and m.role == ASSISTANT):
            shown = conversation(document.messages[:place], document.origin, tokenizer, prompt=True)
            prompt, answer = _ids(tokenizer, shown, document.messages[place].content)
            if prompt and answer:
                turns.append(RecordedTurn(index, turn, prompt, answer, document.id, document.category, predicted))
    if not turns:
        raise ConfigError(f"{what}: no answer has a token in it")
    return turns


def _ids(tokenizer: PreTrainedTokenizerFast, shown: str, text: str) -> tuple[list[int], list[int]]:
    """Return (prompt, answer) as the model that answered read the prompt and generated the answer."""
    prompt, whole = encode_plain(tokenizer, shown), encode_plain(tokenizer, shown + text)
    is_prefix = whole[: len(prompt)] == prompt  # unless a token spans the border
    answer = whole[len(prompt) :] if is_prefix else encode_plain(tokenizer, text)
    end = tokenizer.eos_token_id
    return prompt, answer if end is None else [*answer, int(end)]
