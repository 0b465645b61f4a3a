"""Writes a snapshot: texts in, a folder of immutable files out.

Texts go to disk as they come; suffixes are sorted a bucket at a time from a memory map. Memory is bounded by the bucket
(or by the suffixes of the most frequent token) and the number of frequent contexts; a bucket grows with the corpus only
beyond a hundred million tokens, by one byte a token.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from retrieval_store.index.context_counts import bucket_counts
from retrieval_store.index.context_table import FILES as CONTEXT_FILES
from retrieval_store.index.context_table import ContextTableWriter
from retrieval_store.index.index import Tokens
from retrieval_store.index.suffix_array import END, count_tokens, sorted_buckets
from retrieval_store.index.suffix_search import DEPTH, IDS, checked_ids, order_type
from retrieval_store.snapshots.snapshot import (
    MANIFEST,
    Description,
    FileEntry,
    Manifest,
    encode_manifest,
    entry_of,
    version_of,
)

TEXT, ORDER, STARTS = "text.bin", "order.bin", "starts.bin"
FILES = (TEXT, ORDER, STARTS, *CONTEXT_FILES)
BUCKET = 1 << 20  # suffixes sorted together
BUCKETS = 128  # at most: for each of them the text is read once

Progress = Callable[[str, int, int], None]  # phase, done, of how many (0: not known)


def quiet(phase: str, done: int, total: int) -> None:
    """Shows nothing."""


def write_snapshot(
    documents: Iterable[Sequence[int] | Tokens],
    folder: Path,
    about: Description,
    progress: Progress = quiet,
    bucket: int = BUCKET,
) -> Manifest:
    """Write the snapshot of ``documents`` to ``folder``, which appears at once and complete.

    Args:
        documents: token ids of texts, consumed once. No match and no continuation crosses from one to another.
        folder: must not exist.
        about: for the manifest.
        progress: called now and then.
        bucket: suffixes sorted together; memory is about 120 bytes for each.

    Raises:
        ValueError: an id is not a token of the vocabulary, or there is no token at all.
        FileExistsError: ``folder`` exists.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists")
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        manifest = _Writer(partial, about, progress, bucket).write(documents)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


class _Writer:
    """Writes one snapshot's files."""

    def __init__(self, folder: Path, about: Description, progress: Progress, bucket: int) -> None:
        self._folder = folder
        self._about = about
        self._progress = progress
        self._bucket = bucket

    def write(self, documents: Iterable[Sequence[int] | Tokens]) -> Manifest:
        """All files, the manifest last."""
        n_texts, n_tokens = self._write_text(documents)
        if n_tokens == 0:
            raise ValueError("the documents hold no token: there is nothing to index")
        text: npt.NDArray[np.generic] = np.memmap(self._folder / TEXT, IDS, mode="r")
        windows, contexts = self._write_order(text, n_tokens)
        files = self._entries()
        manifest = Manifest(
            version=version_of(self._about, files),
            created=time.time(),
            about=self._about,
            window=DEPTH,
            texts=n_texts,
            tokens=n_tokens,
            windows=windows,
            contexts=contexts,
            files=files,
        )
        (self._folder / MANIFEST).write_bytes(encode_manifest(manifest))
        return manifest

    def _write_text(self, documents: Iterable[Sequence[int] | Tokens]) -> tuple[int, int]:
        """Ids of all texts, an end behind each; returns how many texts and tokens."""
        n_texts = n_tokens = 0
        end = np.array([END], IDS).tobytes()
        with (self._folder / TEXT).open("wb") as file:
            for document in documents:
                ids = checked_ids(document)
                if len(ids) and int(ids.max()) >= self._about.vocab_size:
                    raise ValueError(f"token id {ids.max()} is not in a vocabulary of {self._about.vocab_size}")
                if len(ids):
                    file.write(ids.astype(IDS).tobytes() + end)
                    n_texts += 1
                    n_tokens += len(ids)
                    self._progress("texts", n_texts, 0)
            file.write(end * DEPTH)
        return n_texts, n_tokens

    def _write_order(self, text: npt.NDArray[np.generic], n_tokens: int) -> tuple[int, int]:
        """Suffix array and frequent contexts; returns the number of different windows and of contexts."""
        counts = count_tokens(text)
        (self._folder / STARTS).write_bytes(np.concatenate(([0], np.cumsum(counts))).astype("<i8").tobytes())
        kind = order_type(len(text))
        table = ContextTableWriter(self._folder)
        done = windows = 0
        with (self._folder / ORDER).open("wb") as file:
            for order in sorted_buckets(text, counts, DEPTH, max(self._bucket, n_tokens // BUCKETS)):
                file.write(order.astype(kind).tobytes())
                found, different = bucket_counts(text, order, DEPTH)
                table.add(found)
                windows += different
                done += len(order)
                self._progress("windows", done, n_tokens)
        table.close()
        return windows, len(table)

    def _entries(self) -> dict[str, FileEntry]:
        entries = {}
        for done, name in enumerate(FILES):
            self._progress("files", done, len(FILES))
            entries[name] = entry_of(self._folder / name)
        return entries
