"""Renders documents as the target reads them, and indexes their tokens in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from app.inputs.chat_templates import render_chat
from app.reporting.report import bar
from retrieval_store.index.memory import MemoryIndex
from retrieval_store.snapshots.corpus import ConversationMessage, Document

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BATCH = 256  # texts tokenised together


def index_of(documents: Sequence[Document], tokenizer: PreTrainedTokenizerFast) -> MemoryIndex:
    return MemoryIndex(tokenised(documents, tokenizer))


def tokenised(documents: Sequence[Document], tokenizer: PreTrainedTokenizerFast) -> Iterator[list[int]]:
    """Yield the token ids of each document; special tokens only from the chat template. Shows a progress bar."""
    with bar("indexing", len(documents), "text", disable=len(documents) < BATCH) as shown:
        for start in range(0, len(documents), BATCH):
            some = documents[start : start + BATCH]
            texts = [as_text(document, tokenizer) for document in some]
            for encoding in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False):
                yield encoding.ids
            shown.update(len(some))


def as_text(document: Document, tokenizer: PreTrainedTokenizerFast) -> str:
    if not document.messages:
        return document.text
    return conversation(document.messages, document.origin, tokenizer)


def conversation(
    messages: Sequence[ConversationMessage], origin: str, tokenizer: PreTrainedTokenizerFast, prompt: bool = False
) -> str:
    """Return messages, at least one, as the chat template renders them; as paragraphs if there is no template.

    With ``prompt`` the text ends where the next answer begins. Raises ConfigError, which names ``origin``, if the
    template fails.
    """
    if not tokenizer.chat_template:
        return "\n\n".join([*(message.content for message in messages), *([""] if prompt else [])])
    plain = [{"role": message.role, "content": message.content} for message in messages]
    return render_chat(tokenizer, plain, prompt=prompt, origin=origin)
