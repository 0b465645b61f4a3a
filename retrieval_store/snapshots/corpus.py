"""Reads corpora and logs: JSON lines, plain text, and folders of both.

A line of a ``.jsonl`` file is a conversation (``messages``, or ``prompt`` or ``question`` with ``answer``) or a
``text``; other keys are ignored. Any other file is one text, or several if it is huge.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

BLOCK = 1 << 20  # characters of a text, or bytes of a file, read at a time
MESSAGE_FORMS = '{"messages": [..]}, {"prompt": .., "answer": ..}, {"question": .., "answer": ..}'


class CorpusError(ValueError):
    """A corpus cannot be read; the message names the file, and the line if one is wrong."""


class ConversationMessage(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: str
    content: str


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, or a text if there are no messages."""

    origin: str  # file and line
    messages: list[ConversationMessage] = []
    text: str = ""
    source: str = ""  # the author
    category: str = ""
    id: int | str = ""
    size: int = 0  # bytes in the file
    prediction: str = ""  # a text that the answers were expected to resemble


class _CorpusLine(msgspec.Struct, frozen=True):
    messages: list[ConversationMessage] | None = None
    prompt: str | None = None
    question: str | None = None
    answer: str | None = None
    text: str | None = None
    source: str = ""
    category: str = ""
    question_id: int | str = ""
    prediction: str = ""


_DECODER = msgspec.json.Decoder(_CorpusLine)


def read_documents(path: Path) -> Iterator[Document]:
    """Yield all documents of a file or of a folder (see ``corpus_files``).

    A file is never in memory as a whole, unless it is a single line.

    Raises:
        CorpusError: there is nothing at ``path``, a file cannot be read, or a line has none of the forms.
    """
    for file in corpus_files(path):
        try:
            yield from _read_lines(file) if is_lines(file) else _read_blocks(file)
        except OSError as error:
            raise CorpusError(f"{file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise CorpusError(f"{file} is not UTF-8 text: {error}") from error


def _read_blocks(path: Path) -> Iterator[Document]:
    """Yield a text as one document, or cut at ends of lines if it has more than ``BLOCK`` characters."""
    with path.open(encoding="utf-8-sig") as file:
        part = 1
        while block := file.read(BLOCK):
            block += file.readline(BLOCK)
            origin = str(path) if part == 1 else f"{path}, part {part}"
            yield Document(origin=origin, text=block, size=len(block.encode()))
            part += 1


def _read_lines(path: Path) -> Iterator[Document]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _document(line.removeprefix(b"\xef\xbb\xbf"), f"{path}, line {number}")


def _document(raw: bytes, origin: str) -> Document:
    try:
        line = _DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorpusError(f"{origin}: {error}") from error
    messages = line.messages
    asked = line.prompt if line.prompt is not None else line.question
    if messages is None and asked is not None and line.answer is not None:
        messages = [ConversationMessage("user", asked), ConversationMessage("assistant", line.answer)]
    if messages is None and line.text is None:
        raise CorpusError(f'{origin} has none of the forms {MESSAGE_FORMS}, {{"text": ..}}')
    return Document(
        origin=origin,
        messages=messages or [],
        text=line.text or "",
        source=line.source,
        category=line.category,
        id=line.question_id,
        size=len(raw),
        prediction=line.prediction,
    )


def corpus_files(path: Path) -> Iterator[Path]:
    """Yield the file at ``path`` or, recursively and in the order of their names, the files of a folder.

    In a folder, hidden files and files that are not UTF-8 text are skipped.
    """
    if not path.is_dir():
        yield path
        return
    for file in sorted(path.rglob("*")):
        is_hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.is_file() and not is_hidden and (is_lines(file) or _is_text(file)):
            yield file


def is_lines(file: Path) -> bool:
    """Return whether each line of a file is a document."""
    return file.suffix == ".jsonl"


def corpus_hash(path: Path) -> tuple[str, int]:
    """Return the sha256 and the bytes of a file; for a folder, the sha256 is of the hashes and names of its files."""
    if not path.is_dir():
        return _file_hash(path)
    digest, size = hashlib.sha256(), 0
    for file in corpus_files(path):
        mine, n_bytes = _file_hash(file)
        digest.update(f"{mine}  {file.relative_to(path)}\n".encode("utf-8", "surrogateescape"))
        size += n_bytes
    return digest.hexdigest(), size


def _file_hash(file: Path) -> tuple[str, int]:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest(), opened.tell()
    except OSError as error:
        raise CorpusError(f"{file}: {error.strerror}") from error


def _is_text(file: Path) -> bool:
    """Return whether a whole file is UTF-8 text: a corpus must not contain half a file."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with file.open("rb") as opened:
            while block := opened.read(BLOCK):
                if b"\0" in block:
                    return False
                decoder.decode(block)
            decoder.decode(b"", final=True)
    except OSError:
        return True  # the error follows when it is read
    except UnicodeDecodeError:
        return False
    return True
