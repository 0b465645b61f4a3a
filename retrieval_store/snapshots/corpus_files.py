"""Which files an input of a corpus consists of, their bytes and their hash. Knows files, not what is in them."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 1 << 20  # bytes read at a time


class CorpusError(ValueError):
    """A corpus cannot be read; the message names the file, and the line if it is one line's fault."""


def corpus_files(path: Path) -> Iterator[Path]:
    """The file at ``path``; of a folder all files below it, in the order of their names.

    In a folder, hidden files and files that are not UTF-8 text are passed over.
    """
    if not path.is_dir():
        yield path
        return
    for file in sorted(path.rglob("*")):
        is_hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.is_file() and not is_hidden and (is_lines(file) or _is_text(file)):
            yield file


def is_lines(file: Path) -> bool:
    """Whether every line of a file is a document of its own."""
    return file.suffix == ".jsonl"


def corpus_hash(path: Path) -> tuple[str, int]:
    """sha256 of what ``path`` holds, and its bytes; of a folder: of the hashes and names of its files.

    Raises:
        CorpusError: a file cannot be read.
    """
    if not path.is_dir():
        return _file_hash(path)
    digest, size = hashlib.sha256(), 0
    for file in corpus_files(path):
        mine, n_bytes = _file_hash(file)
        digest.update(f"{mine}  {file.relative_to(path)}\n".encode("utf-8", "surrogateescape"))
        size += n_bytes
    return digest.hexdigest(), size


def _file_hash(file: Path) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    try:
        with file.open("rb") as opened:
            while block := opened.read(_BLOCK):
                digest.update(block)
                size += len(block)
    except OSError as error:
        raise CorpusError(f"{file}: {error.strerror}") from error
    return digest.hexdigest(), size


def _is_text(file: Path) -> bool:
    """Whether a file is UTF-8 text from beginning to end: half a file must not be in a corpus."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with file.open("rb") as opened:
            while block := opened.read(_BLOCK):
                if b"\0" in block:
                    return False
                decoder.decode(block)
            decoder.decode(b"", final=True)
    except OSError:
        return True  # reading it says what is wrong
    except UnicodeDecodeError:
        return False
    return True
