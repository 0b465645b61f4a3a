"""Reads corpora and logs: JSON lines, plain text, folders of both. Knows files and JSON, no tokenizer.

A line of a ``.jsonl`` file is a conversation (``messages``, or ``prompt`` or ``question`` with ``answer``) or a
``text``; further keys are allowed and ignored. Any other file is one text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

MESSAGE_FORMS = '{"messages": [..]}, {"prompt": .., "answer": ..}, {"question": .., "answer": ..}'


class CorpusError(ValueError):
    """A corpus cannot be read; the message names file and line."""


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: str
    content: str


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation or, without messages, a text."""

    origin: str  # file and line
    messages: list[Message] = []
    text: str = ""
    source: str = ""  # who wrote it, as the line says
    category: str = ""
    id: int | str = ""


class _Line(msgspec.Struct, frozen=True):
    messages: list[Message] | None = None
    prompt: str | None = None
    question: str | None = None
    answer: str | None = None
    text: str | None = None
    source: str = ""
    category: str = ""
    question_id: int | str = ""


_DECODER = msgspec.json.Decoder(_Line)


def read_documents(path: Path) -> Iterator[Document]:
    """All documents of a file or, recursively and in the order of their names, of a folder.

    In a folder, hidden files and files that are not UTF-8 text are passed over.

    Raises:
        CorpusError: there is nothing at ``path``, a file cannot be read, or a line is none of the forms.
    """
    if not path.is_dir():
        yield from _read_file(path)
        return
    for file in sorted(path.rglob("*")):
        is_hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.is_file() and not is_hidden and (file.suffix == ".jsonl" or _is_text(file)):
            yield from _read_file(file)


def _read_file(path: Path) -> Iterator[Document]:
    try:
        if path.suffix == ".jsonl":
            yield from _read_lines(path)
        else:
            yield Document(origin=str(path), text=path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is not UTF-8 text: {error}") from error


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
        messages = [Message("user", asked), Message("assistant", line.answer)]
    if messages is None and line.text is None:
        raise CorpusError(f'{origin} is none of {MESSAGE_FORMS}, {{"text": ..}}')
    return Document(
        origin=origin,
        messages=messages or [],
        text=line.text or "",
        source=line.source,
        category=line.category,
        id=line.question_id,
    )


def _is_text(path: Path) -> bool:
    """Whether a file begins like UTF-8 text."""
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except OSError:
        return True  # reading it says what is wrong
    if b"\0" in start:
        return False
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(start) - 4  # a character that the end of the sample cuts
    return True
