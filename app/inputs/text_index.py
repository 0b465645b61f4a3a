"""Text becomes an index: what a target would have read, tokenised, and sorted in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.inputs.chat_templates import render_chat
from app.inputs.tokenizers import load_tokenizer
from app.reporting.report import bar
from engine.errors import ConfigError
from engine.model.resolve import resolve
from retrieval_store.index.memory import MemoryIndex
from retrieval_store.snapshots.corpus import ConversationMessage, CorpusError, Document, read_documents

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BATCH = 256  # texts tokenised together


def corpus_index(path: str, tokenizer: str, revision: str | None = None) -> MemoryIndex:
    """The index of the text at ``path``: a text, a JSON-lines file, or a folder of such files.

    Reads and tokenises about a megabyte per second; a later change of the files goes unnoticed.

    Args:
        path: of the text.
        tokenizer: directory or hub id of the target.
        revision: of the target on the hub.

    Raises:
        ConfigError: the text cannot be read.
    """
    try:
        documents = list(read_documents(Path(path)))
    except CorpusError as error:
        raise ConfigError(f"--retrieval {path}: {error}") from error
    return index_of(documents, load_tokenizer(resolve(tokenizer, revision, weights=())))


def index_of(documents: Sequence[Document], tokenizer: PreTrainedTokenizerFast) -> MemoryIndex:
    """An index of all documents; conversations are as the chat template writes them. Shows a progress bar."""
    return MemoryIndex(tokenised(documents, tokenizer))


def tokenised(documents: Sequence[Document], tokenizer: PreTrainedTokenizerFast) -> Iterator[list[int]]:
    """The documents' token ids, special tokens only where the chat template puts them; shows a progress bar."""
    with bar("indexing", len(documents), "text", disable=len(documents) < BATCH) as shown:
        for start in range(0, len(documents), BATCH):
            some = documents[start : start + BATCH]
            texts = [as_text(document, tokenizer) for document in some]
            for encoding in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False):
                yield encoding.ids
            shown.update(len(some))


def as_text(document: Document, tokenizer: PreTrainedTokenizerFast) -> str:
    """What the target would have read.

    Raises:
        ConfigError: the chat template refuses the conversation.
    """
    if not document.messages:
        return document.text
    return conversation(document.messages, document.origin, tokenizer)


def conversation(
    messages: Sequence[ConversationMessage], origin: str, tokenizer: PreTrainedTokenizerFast, prompt: bool = False
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
    return render_chat(tokenizer, plain, prompt=prompt, origin=origin)
