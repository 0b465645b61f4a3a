"""Builds the built-in snapshot, for servers without a corpus: Python's standard library and its reference.

It is built once per tokenizer and Python, and kept in the cache folder. It is not refined, because scoring it would
take minutes. The library and the reference in ``pydoc_data`` are under the PSF licence.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from app.inputs.stores import snapshot_folder
from app.inputs.text_index import tokenised
from app.inputs.tokenizers import load_tokenizer
from engine.kept_files import hold_lock
from engine.model.identity import tokenizer_hash
from engine.model.identity import vocab_size as vocab_size_of
from retrieval_store.errors import SnapshotError
from retrieval_store.index.index import Tokens
from retrieval_store.snapshots.corpus import Document
from retrieval_store.snapshots.snapshot import Description, check_files
from retrieval_store.snapshots.snapshot_writer import write_snapshot

BUILTIN = "builtin"
RECIPE = 2  # increase it when other text is selected, so that older snapshots are not used
MAX_CHARS = 3 << 20  # of code; 0.93 million tokens of the default model
LONGEST = 128 << 10  # characters of a file; longer ones are mostly tables
SKIPPED = {"site-packages", "test", "tests", "idle_test", "__pycache__", "encodings", "pydoc_data"}
SKIPPED |= {"idlelib", "lib2to3", "distutils", "turtledemo", "ensurepip"}


def builtin_snapshot(model: Path) -> Path:
    """Return the folder of the built-in snapshot for the tokenizer in directory ``model``, and build it if needed.

    That takes a few seconds, for which other processes that need it wait. Raises OSError if the cache folder cannot be
    written or ``model`` has no ``tokenizer.json``, UnsupportedModelError if its tokenizer cannot be loaded.
    """
    about = Description(tokenizer_hash=tokenizer_hash(model), vocab_size=vocab_size_of(model))
    name = f"builtin-{about.tokenizer_hash}-{about.vocab_size}-{platform.python_version()}-{RECIPE}"
    folder = snapshot_folder() / name
    if _is_whole(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder):
        if not _is_whole(folder):
            message = "Indexing Python's standard library, which spectra and rest draft from (once) ..."
            print(message, file=sys.stderr, flush=True)
            for old in (folder, *folder.parent.glob(f".{name}.*")):  # damaged, or of a process that was stopped
                shutil.rmtree(old, ignore_errors=True)
            write_snapshot(_texts(model, about.vocab_size), folder, about)
    return folder


def _is_whole(folder: Path) -> bool:
    try:
        check_files(folder)
    except SnapshotError:
        return False
    return True


def _texts(model: Path, vocab_size: int) -> Iterator[Tokens]:
    """Yield the documents as token ids, without those with ids that the model lacks: a tokenizer may know more."""
    n_outside = 0
    for ids in tokenised(list(documents()), load_tokenizer(model)):
        if max(ids, default=0) < vocab_size:
            yield np.array(ids, np.int32)
        else:
            n_outside += 1
    if n_outside:
        print(f"{n_outside} texts are outside the vocabulary of {vocab_size} tokens: left out", file=sys.stderr)


def documents() -> Iterator[Document]:
    """Yield the library's modules, top-level ones first, up to ``MAX_CHARS``; then the topics of the reference."""
    left = MAX_CHARS
    for path in _modules(Path(sysconfig.get_paths()["stdlib"])):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if 0 < len(text) <= min(LONGEST, left):
            left -= len(text)
            yield Document(origin=str(path), text=text)
    for name, text in sorted(topics.items()):
        yield Document(origin=f"topic {name}", text=text)


def _modules(root: Path) -> list[Path]:
    found: list[Path] = []
    for folder, inner, files in os.walk(root):
        inner[:] = set(inner) - SKIPPED  # os.walk descends only into folders that stay in this list
        found += [Path(folder) / name for name in files if name.endswith(".py")]
    return sorted(found, key=lambda path: (len(path.parts), path))
