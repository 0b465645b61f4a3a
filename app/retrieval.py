"""Retrieval on the command line: text at ``--retrieval`` becomes an index in the process that drafts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from app.tokenizers import load_tokenizer
from engine.errors import ConfigError
from engine.model.loader import resolve
from retrieval_store.corpus import CorpusError, Document, Message, read_documents
from retrieval_store.memory import MemoryIndex

BATCH = 256  # texts tokenised together


@dataclass(frozen=True, slots=True)
class CorpusIndex:
    """Makes the index of a corpus, once per process; travels to where it is needed instead of the index itself.

    The text is read and tokenised then, at about a megabyte per second; a later change of the files goes unnoticed.
    """

    path: str  # of a text, a JSON-lines file, or a folder of such files
    tokenizer: str  # directory or hub id of the target

    def __call__(self) -> MemoryIndex:
        """The index.

        Raises:
            ConfigError: the corpus cannot be read.
        """
        return _made(self.path, self.tokenizer)


def corpus_index(path: str | None, tokenizer: str) -> CorpusIndex | None:
    """What makes the index of ``path``; None without a path.

    Raises:
        ConfigError: there is nothing at ``path``.
    """
    if path is None:
        return None
    return CorpusIndex(str(checked_corpus(path).resolve()), tokenizer)


def checked_corpus(path: str) -> Path:
    """The corpus at ``path``.

    Raises:
        ConfigError: there is nothing.
    """
    if path.startswith(("redis://", "rediss://")):
        raise ConfigError(f"--retrieval {path}: snapshots in Redis are not available yet; give a folder or a file")
    if not Path(path).expanduser().exists():
        raise ConfigError(f"--retrieval {path}: no such file or folder")
    return Path(path).expanduser()


@lru_cache(maxsize=2)
def _made(path: str, tokenizer: str) -> MemoryIndex:
    try:
        documents = list(read_documents(Path(path)))
    except CorpusError as error:
        raise ConfigError(f"--retrieval: {error}") from error
    return index_of(documents, load_tokenizer(resolve(tokenizer)))


def index_of(documents: Sequence[Document], tokenizer: PreTrainedTokenizerFast) -> MemoryIndex:
    """An index of all documents, with a progress bar; conversations as the chat template writes them."""
    with tqdm(
        total=len(documents), unit="text", desc="indexing", file=sys.stderr, disable=len(documents) < BATCH
    ) as bar:
        return MemoryIndex(_encoded(documents, tokenizer, bar))


def _encoded(documents: Sequence[Document], tokenizer: PreTrainedTokenizerFast, bar: Any) -> Iterator[list[int]]:
    for start in range(0, len(documents), BATCH):
        some = documents[start : start + BATCH]
        texts = [as_text(document, tokenizer) for document in some]
        for encoding in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False):
            yield encoding.ids
        bar.update(len(some))


def as_text(document: Document, tokenizer: PreTrainedTokenizerFast) -> str:
    """What the target would have read.

    Raises:
        ConfigError: the chat template refuses the conversation.
    """
    if not document.messages:
        return document.text
    return conversation(document.messages, document.origin, tokenizer)


def conversation(
    messages: Sequence[Message], origin: str, tokenizer: PreTrainedTokenizerFast, prompt: bool = False
) -> str:
    """Messages as the chat template writes them; without a template they are paragraphs.

    Args:
        messages: at least one.
        origin: where they are from, for errors.
        tokenizer: with the template.
        prompt: end where the next answer begins.

    Raises:
        ConfigError: the chat template refuses the conversation.
    """
    if not tokenizer.chat_template:
        return "\n\n".join([*(message.content for message in messages), *([""] if prompt else [])])
    plain = [{"role": message.role, "content": message.content} for message in messages]
    try:
        return str(tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=prompt))
    except TemplateError as error:
        raise ConfigError(f"{origin}: the chat template refuses this conversation: {error}") from error
