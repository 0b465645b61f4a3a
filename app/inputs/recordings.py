"""Recorded answers: read from logs, split into history and test, and turned into token ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.inputs.prompts import encode_prediction
from app.inputs.text_index import conversation
from engine.errors import ConfigError
from retrieval_store.snapshots.corpus import MESSAGE_FORMS, CorpusError, Document, read_documents

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One recorded answer: a turn of a conversation."""

    index: int  # of the conversation
    turn: int
    prompt: list[int]
    answer: list[int]  # the tokenizer's end-of-text token included
    question_id: int | str
    category: str
    prediction: Sequence[int] = ()  # what was expected


def read_logs(paths: Iterable[Path], source: str | None, flag: str) -> list[Document]:
    """The conversations of some files, those of ``source`` alone if it is given.

    Raises:
        ConfigError: a file cannot be read, a line has no answer, or nothing is left; the message names ``flag``.
    """
    found: list[Document] = []
    for path in paths:
        if path.is_dir() or path.suffix != ".jsonl":
            raise ConfigError(f"{flag} {path}: give JSON-lines files (.jsonl)")
        try:
            found += [_named(document, path) for document in read_documents(path)]
        except CorpusError as error:
            raise ConfigError(f"{flag} {error}") from error
    for document in found:
        if not any(message.role == ASSISTANT for message in document.messages[1:]):
            raise ConfigError(f"{flag} {document.origin}: there is no answer in it; a line is one of {MESSAGE_FORMS}")
    kept = [document for document in found if source in (None, document.source)]
    if not kept:
        known = ", ".join(sorted({document.source for document in found if document.source}))
        raise ConfigError(f"{flag}: no conversation is left of {len(found)}; sources in the files: {known or 'none'}")
    return kept


def _named(document: Document, path: Path) -> Document:
    category = document.category or document.source or path.stem
    return Document(
        origin=document.origin,
        messages=document.messages,
        source=document.source,
        category=category,
        id=document.id,
        prediction=document.prediction,
    )


def split(documents: Sequence[Document], fraction: float) -> tuple[list[Document], list[Document]]:
    """(history, test): ``fraction`` of all distinct prompts, evenly spread, and the others.

    Conversations that begin with the same message go to the same side, or the history would know the question.
    """
    prompts = list(dict.fromkeys(document.messages[0].content for document in documents))
    # The small amount keeps 0.7 * 10 from being a little less than 7.
    is_history = {prompt: int((i + 1) * fraction + 1e-9) > int(i * fraction + 1e-9) for i, prompt in enumerate(prompts)}
    history = [document for document in documents if is_history[document.messages[0].content]]
    test = [document for document in documents if not is_history[document.messages[0].content]]
    return history, test


def encode(tokenizer: PreTrainedTokenizerFast, documents: Sequence[Document], what: str) -> list[RecordedTurn]:
    """Every answer of the conversations with all that came before it as its prompt.

    Raises:
        ConfigError: the chat template refuses a conversation, or no answer has a token.
    """
    turns: list[RecordedTurn] = []
    for index, document in enumerate(documents):
        predicted = encode_prediction(tokenizer, document.prediction)
        for turn, place in enumerate(p for p, m in enumerate(document.messages) if p and m.role == ASSISTANT):
            shown = conversation(document.messages[:place], document.origin, tokenizer, prompt=True)
            prompt, answer = _ids(tokenizer, shown, document.messages[place].content)
            if prompt and answer:
                turns.append(RecordedTurn(index, turn, prompt, answer, document.id, document.category, predicted))
    if not turns:
        raise ConfigError(f"{what}: no answer has a token in it")
    return turns


def _ids(tokenizer: PreTrainedTokenizerFast, shown: str, text: str) -> tuple[list[int], list[int]]:
    """(prompt, answer) as the model that answered would have read the one and drawn the other."""
    backend = tokenizer.backend_tokenizer
    prompt = list(backend.encode(shown, add_special_tokens=False).ids)
    whole = list(backend.encode(shown + text, add_special_tokens=False).ids)
    is_prefix = whole[: len(prompt)] == prompt  # unless a token reaches across the border
    answer = whole[len(prompt) :] if is_prefix else list(backend.encode(text, add_special_tokens=False).ids)
    end = tokenizer.eos_token_id
    return prompt, answer if end is None else [*answer, int(end)]
