"""Inputs become texts on disk: hashed, read, written by the chat template, tokenised in batches, cut into pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from app.inputs.text_index import as_text
from app.reporting.report import bar
from engine.errors import ConfigError
from retrieval_store.refine.texts import TextWriter, cut
from retrieval_store.snapshots.corpus import BLOCK, CorpusError, Document, corpus_hash, read_documents

BAR: dict[str, Any] = {"unit_scale": True, "mininterval": 0.5}  # options of all bars of a build
BATCH = 256  # documents tokenised together, or fewer if these have ``BLOCK`` characters


@dataclass(frozen=True, slots=True)
class CorpusInput:
    """A file or folder of ``--input``, with the hash of its content."""

    name: str  # as given
    path: Path
    sha256: str
    bytes: int


def read_inputs(paths: Sequence[Path]) -> list[CorpusInput]:
    """The inputs with their hashes, for which all bytes are read once."""
    try:
        return [CorpusInput(str(path), path.resolve(), *corpus_hash(path)) for path in paths]
    except CorpusError as error:
        raise ConfigError(f"--input {error}") from error


class Encoder:
    """Turns documents into pieces of token ids.

    Args:
        vocab_size: of the model; the tokenizer may have further ids, and pieces may hold them.
        longest: tokens of a piece.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, vocab_size: int, longest: int) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()  # some checkpoints come with a limit
        self._backend.no_padding()
        self._longest = longest
        ids = [[i] for i in range(max(vocab_size, len(tokenizer)))]
        written = self._backend.decode_batch(ids, skip_special_tokens=False)
        self._ends_line: npt.NDArray[np.bool_] = np.array([one.endswith("\n") for one in written])

    def pieces(self, documents: Sequence[Document]) -> Iterator[list[npt.NDArray[np.int32]]]:
        blocks = [list(_blocks(as_text(document, self._tokenizer))) for document in documents]
        encoded = iter(self._backend.encode_batch_fast([*chain(*blocks)], add_special_tokens=False))
        for mine in blocks:
            ids = [np.array(next(encoded).ids, np.int32) for _ in mine]
            yield [piece for part in ids for piece in cut(part, self._longest, self._ends_line) if len(piece)]


def _blocks(text: str) -> Iterator[str]:
    """A text in parts of at most ``BLOCK`` characters, cut after line ends where there are any.

    A tokenizer takes a hundred times the memory of its text.
    """
    first = 0
    while len(text) - first > BLOCK:
        end = text.rfind("\n", first, first + BLOCK) + 1 or first + BLOCK
        yield text[first:end]
        first = end
    yield text[first:]


def write_texts(inputs: Sequence[CorpusInput], encoder: Encoder, folder: Path) -> int:
    """Write the texts of all inputs to ``folder``, after those of an earlier run; returns the number of new tokens."""
    n_bytes = sum(one.bytes for one in inputs)
    with closing(TextWriter(folder)) as writer, bar("reading", n_bytes, "B", **BAR) as shown:
        before = writer.state
        try:
            for batch in _batches(inputs, before.documents, shown):
                found = encoder.pieces([document for document, _ in batch])
                for (document, source), pieces in zip(batch, found, strict=True):
                    writer.add(pieces, source, document.origin)
                    shown.update(document.size)
                writer.save()
        except CorpusError as error:
            raise ConfigError(f"--input {error}") from error
        writer.save(is_complete=True)
        return writer.state.tokens - before.tokens


def _batches(inputs: Sequence[CorpusInput], skipped: int, shown: Any) -> Iterator[list[tuple[Document, int]]]:
    """Documents after the first ``skipped``, each with the number of its input, in batches to tokenise together."""
    documents = ((document, source) for source, one in enumerate(inputs) for document in read_documents(one.path))
    batch: list[tuple[Document, int]] = []
    size = 0
    for number, (document, source) in enumerate(documents):
        if number < skipped:
            shown.update(document.size)
            continue
        if batch and (len(batch) == BATCH or size + document.size > BLOCK):
            yield batch
            batch, size = [], 0
        batch.append((document, source))
        size += document.size
    if batch:
        yield batch
