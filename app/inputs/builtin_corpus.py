"""The built-in snapshot: the running Python's standard library and its reference, for servers without a corpus.

Unrefined: scoring it would take minutes, indexing it takes seconds. The library and the reference in ``pydoc_data`` are
under the PSF licence. A snapshot is built once per tokenizer and Python, and kept in the cache folder.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from app.inputs.current_snapshot import snapshot_folder
from app.inputs.text_index import tokenised
from app.inputs.tokenizers import load_tokenizer
from engine.kept_files import hold_lock
from engine.model.identity import tokenizer_hash
from engine.model.identity import vocab_size as vocab_size_of
from retrieval_store.errors import SnapshotError
from retrieval_store.index.index import Tokens
from retrieval_store.snapshots.corpus import Document
from retrieval_store.snapshots.snapshot import Description, check_sizes, read_manifest
from retrieval_store.snapshots.snapshot_writer import write_snapshot

BUILTIN = "builtin"
RECIPE = 2  # grows when other text is taken, so that older snapshots are not used
MAX_CHARS = 3 << 20  # of code; 0.93 million tokens of the default model
LONGEST = 128 << 10  # characters of a file; longer ones are tables for the most part
SKIPPED = {"site-packages", "test", "tests", "idle_test", "__pycache__", "encodings", "pydoc_data"}
SKIPPED |= {"idlelib", "lib2to3", "distutils", "turtledemo", "ensurepip"}


def builtin_snapshot(model: Path) -> Path:
    """Folder of the built-in snapshot for the tokenizer in directory ``model``; built now if it is not there.

    Takes a few seconds the first time. Processes that ask at the same time wait for the one that builds.

    Raises:
        OSError: the cache folder cannot be written, or ``model`` has no ``tokenizer.json``.
        UnsupportedModelError: ``model`` does not say its vocabulary and cannot be run, or has no tokenizer that loads.
    """
    key = tokenizer_hash(model)
    vocab_size = vocab_size_of(model)
    folder = snapshot_folder() / f"builtin-{key}-{vocab_size}-{platform.python_version()}-{RECIPE}"
    if _is_whole(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder):
        if not _is_whole(folder):
            print(
                "Indexing Python's standard library, which spectra and rest draft from (once) ...",
                file=sys.stderr,
                flush=True,
            )
            _build(model, Description(tokenizer_hash=key, vocab_size=vocab_size), folder)
    return folder


def _build(model: Path, about: Description, folder: Path) -> None:
    tokenizer = load_tokenizer(model)
    for old in (folder, *folder.parent.glob(f".{folder.name}.*")):  # damaged, or of a process that was stopped
        shutil.rmtree(old, ignore_errors=True)
    ids = (np.array(text, np.int32) for text in tokenised(list(documents()), tokenizer))
    write_snapshot(_within(ids, about.vocab_size), folder, about)


def _within(texts: Iterable[Tokens], vocab_size: int) -> Iterator[Tokens]:
    """The texts that the model can read, since a tokenizer may know more tokens; says how many are left out."""
    n_outside = 0
    for text in texts:
        if text.max(initial=0) < vocab_size:
            yield text
        else:
            n_outside += 1
    if n_outside:
        print(f"{n_outside} texts are outside the vocabulary of {vocab_size} tokens: left out", file=sys.stderr)


def documents() -> Iterator[Document]:
    """The library's modules, the shallow ones first, as far as ``MAX_CHARS`` go; then the reference's topics."""
    left = MAX_CHARS
    for path in _modules(Path(sysconfig.get_paths()["stdlib"])):
        text = _read(path)
        if 0 < len(text) <= min(LONGEST, left):
            left -= len(text)
            yield Document(origin=str(path), text=text)
    for name, text in sorted(topics.items()):
        yield Document(origin=f"topic {name}", text=text)


def _modules(root: Path) -> list[Path]:
    found: list[Path] = []
    for folder, inner, files in os.walk(root):
        inner[:] = set(inner) - SKIPPED  # os.walk descends into what this list keeps
        found += [Path(folder) / name for name in files if name.endswith(".py")]
    return sorted(found, key=lambda path: (len(path.parts), path))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _is_whole(folder: Path) -> bool:
    try:
        check_sizes(folder, read_manifest(folder))
    except SnapshotError:
        return False
    return True
