"""Reads corpora and logs: JSON lines, plain text, folders of both. Knows files and JSON, no tokenizer.

A line of a ``.jsonl`` file is a conversation (``messages``, or ``prompt`` or ``question`` with ``answer``) or a
``text``; further keys are allowed and ignored. Any other file is one text, a huge one several.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

BLOCK = 1 << 20  # characters of a text, or bytes of a file, that are read together
MESSAGE_FORMS = '{"messages": [..]}, {"prompt": .., "answer": ..}, {"question": .., "answer": ..}'


class CorpusError(ValueError):
    """A corpus cannot be read; the message names the file, and the line if it is one line's fault."""


class ConversationMessage(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: str
    content: str


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation or, without messages, a text."""

    origin: str  # file and line
    messages: list[ConversationMessage] = []
    text: str = ""
    source: str = ""  # the author, as the line says
    category: str = ""
    id: int | str = ""
    size: int = 0  # bytes of the file that it takes
    prediction: str = ""  # a text that its answers were expected to be much like


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
    """All documents of a file or, recursively and in the order of their names, of a folder.

    In a folder, hidden files and files that are not UTF-8 text are passed over. A file is never in memory as a whole,
    unless it is a single line.

    Raises:
        CorpusError: there is nothing at ``path``, a file cannot be read, or a line is none of the forms.
    """
    for file in corpus_files(path):
        yield from _read_file(file)


def _read_file(path: Path) -> Iterator[Document]:
    try:
        yield from _read_lines(path) if is_lines(path) else _read_blocks(path)
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is not UTF-8 text: {error}") from error


def _read_blocks(path: Path) -> Iterator[Document]:
    """A text is one document, unless it has more than ``BLOCK`` characters: then it is cut at the ends of lines."""
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
        raise CorpusError(f'{origin} is none of {MESSAGE_FORMS}, {{"text": ..}}')
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
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest(), opened.tell()
    except OSError as error:
        raise CorpusError(f"{file}: {error.strerror}") from error


def _is_text(file: Path) -> bool:
    """Whether a file is UTF-8 text from beginning to end: half a file must not be in a corpus."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with file.open("rb") as opened:
            while block := opened.read(BLOCK):
                if b"\0" in block:
                    return False
                decoder.decode(block)
            decoder.decode(b"", final=True)
    except OSError:
        return True  # reading it says what is wrong
    except UnicodeDecodeError:
        return False
    return True
