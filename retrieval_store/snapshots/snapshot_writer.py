"""Writes texts to a snapshot, a folder of immutable files.

Texts go to the disk as they come. Suffixes are sorted bucket by bucket from a memory map, so the bucket (or the
suffixes of the most frequent token) and the number of frequent contexts bound the memory. Beyond a hundred million
tokens, a bucket grows by one byte per token.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from retrieval_store.index.context_table import FILES as CONTEXT_FILES
from retrieval_store.index.context_table import ContextTableWriter, mapped_array
from retrieval_store.index.index import Tokens
from retrieval_store.index.suffix_array import END, common_prefixes, count_tokens, sorted_buckets
from retrieval_store.index.suffix_search import DEPTH, IDS, checked_ids, order_type
from retrieval_store.snapshots.snapshot import MANIFEST, Description, Manifest, encode_manifest, entry_of, version_of

TEXT, ORDER, STARTS = "text.bin", "order.bin", "starts.bin"
FILES = (TEXT, ORDER, STARTS, *CONTEXT_FILES)
BUCKET = 1 << 20  # suffixes sorted together
BUCKETS = 128  # at most: the text is read once for each of them

Progress = Callable[[str, int, int], None]  # phase, done, of how many (0: not known)


def write_snapshot(
    documents: Iterable[Sequence[int] | Tokens],
    folder: Path,
    about: Description,
    progress: Progress = lambda phase, done, total: None,
    bucket: int = BUCKET,
) -> Manifest:
    """Write the snapshot of ``documents`` to ``folder``, which appears only when it is complete.

    Args:
        documents: token ids of texts, consumed once. No match and no continuation crosses from one to another.
        folder: must not exist.
        about: for the manifest.
        progress: called repeatedly.
        bucket: suffixes sorted together; memory is about 250 bytes for each.

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
        n_texts, n_tokens = _write_text(documents, partial, about.vocab_size, progress)
        windows, contexts = _write_order(partial, n_tokens, bucket, progress)
        files = {}
        for done, name in enumerate(FILES):
            progress("files", done, len(FILES))
            files[name] = entry_of(partial / name)
        manifest = Manifest(
            version=version_of(about, files),
            created=time.time(),
            about=about,
            window=DEPTH,
            texts=n_texts,
            tokens=n_tokens,
            windows=windows,
            contexts=contexts,
            files=files,
        )
        (partial / MANIFEST).write_bytes(encode_manifest(manifest))
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


def _write_text(
    documents: Iterable[Sequence[int] | Tokens], folder: Path, vocab_size: int, progress: Progress
) -> tuple[int, int]:
    """Write the ids of all texts, an end after each; return the number of texts and tokens."""
    n_texts = n_tokens = 0
    end = np.array([END], IDS).tobytes()
    with (folder / TEXT).open("wb") as file:
        for document in documents:
            ids = checked_ids(document)
            if len(ids) and int(ids.max()) >= vocab_size:
                raise ValueError(f"token id {ids.max()} is not in a vocabulary of {vocab_size}")
            if len(ids):
                file.write(ids.astype(IDS).tobytes() + end)
                n_texts += 1
                n_tokens += len(ids)
                progress("texts", n_texts, 0)
        file.write(end * DEPTH)
    if n_tokens == 0:
        raise ValueError("the documents hold no token: there is nothing to index")
    return n_texts, n_tokens


def _write_order(folder: Path, n_tokens: int, bucket: int, progress: Progress) -> tuple[int, int]:
    """Write the suffix array and the frequent contexts; return the number of different windows and of contexts."""
    text = mapped_array(folder / TEXT, IDS)
    counts = count_tokens(text)
    (folder / STARTS).write_bytes(np.concatenate(([0], np.cumsum(counts))).astype("<i8").tobytes())
    kind = order_type(len(text))
    table = ContextTableWriter(folder)
    done = windows = 0
    with (folder / ORDER).open("wb") as file:
        for order in sorted_buckets(text, counts, DEPTH, max(bucket, n_tokens // BUCKETS)):
            shared = common_prefixes(text, order, DEPTH)
            stored = order.astype(kind)
            stored.flags.writeable = False  # as in mapped files: Numba compiles writeable arrays separately
            file.write(stored.tobytes())
            table.add(text, stored, shared)
            windows += int(np.count_nonzero(shared < DEPTH))
            done += len(order)
            progress("windows", done, n_tokens)
    table.close()
    return windows, len(table)
