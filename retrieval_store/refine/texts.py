"""The texts of a corpus on disk while it is built: token ids in one file, and a table of where each text begins.

A folder has four files: ``ids`` (uint32), ``rows`` (``ROW``), ``origins`` (a line per document) and ``state.json``,
which says how much of the others counts. Bytes after that were being written when the process died, and are cut off.
Memory holds the table (26 bytes per text), never the ids.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from retrieval_store.index.index import Tokens

ROW = np.dtype([("offset", "<u8"), ("hash", "<u8"), ("length", "<u4"), ("document", "<u4"), ("source", "<u2")])
Rows = npt.NDArray[np.void]
SLACK = 4  # a piece may end a quarter of its length early
IDS, ROWS, ORIGINS, STATE = "ids", "rows", "origins", "state.json"


class FolderState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of the files counts."""

    documents: int = 0
    texts: int = 0
    tokens: int = 0
    origins: int = 0  # bytes
    is_complete: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file that count."""
        return {IDS: 4 * self.tokens, ROWS: ROW.itemsize * self.texts, ORIGINS: self.origins}


def read_state(folder: Path) -> FolderState:
    """Return the state in ``folder``; nothing counts if files are missing or shorter than it says."""
    try:
        state = msgspec.json.decode((folder / STATE).read_bytes(), type=FolderState)
        is_there = all((folder / name).stat().st_size >= size for name, size in state.sizes.items())
    except (OSError, msgspec.DecodeError):
        return FolderState()
    return state if is_there else FolderState()


class TextWriter:
    """Appends documents after those that ``state`` counts; what is appended counts after ``save``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.state = read_state(folder)
        self._folder = folder
        self._files = {name: (folder / name).open("ab") for name in (IDS, ROWS, ORIGINS)}
        for name, size in self.state.sizes.items():
            self._files[name].truncate(size)

    def add(self, pieces: Iterable[Tokens], source: int, origin: str) -> None:
        """Append a document: its texts, the number of its input, and its origin there."""
        state, texts, tokens = self.state, 0, 0
        for piece in pieces:
            raw = piece.astype("<u4").tobytes()
            row = (state.tokens + tokens, hash_of(raw), len(piece), state.documents, source)
            self._files[IDS].write(raw)
            self._files[ROWS].write(np.array([row], ROW).tobytes())
            texts, tokens = texts + 1, tokens + len(piece)
        line = " ".join(origin.splitlines()).encode("utf-8", "replace") + b"\n"
        self._files[ORIGINS].write(line)
        self.state = FolderState(
            state.documents + 1, state.texts + texts, state.tokens + tokens, state.origins + len(line)
        )

    def save(self, is_complete: bool = False) -> None:
        """Sync everything appended so far to the disk, and make it count."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self.state = msgspec.structs.replace(self.state, is_complete=is_complete)
        new = self._folder / (STATE + ".new")
        new.write_bytes(msgspec.json.encode(self.state))
        new.replace(self._folder / STATE)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def hash_of(raw: bytes) -> int:
    """Return 64 bits of the hash of a text's ids; 10 million texts collide in one of some hundred thousand corpora."""
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


class FolderTexts:
    """Reads the texts of a complete folder, which are numbered in the order in which they were appended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ids = (folder / IDS).open("rb")
        self.rows: Rows = np.fromfile(folder / ROWS, ROW, count=read_state(folder).texts)

    def __len__(self) -> int:
        return len(self.rows)

    def tokens(self, text: int) -> Tokens:
        """Return the ids of a text, int32 ``[t]``; they are read, not mapped, so that memory does not fill up."""
        row = self.rows[text]
        raw = os.pread(self._ids.fileno(), 4 * int(row["length"]), 4 * int(row["offset"]))
        return np.frombuffer(raw, "<i4")

    def origins(self, texts: Sequence[int]) -> list[str]:
        """Return the origins of texts; reads the file of origins once."""
        wanted = {int(self.rows["document"][text]) for text in texts}
        found: dict[int, str] = {}
        with (self.folder / ORIGINS).open("rb") as file:
            for document, line in enumerate(file):
                if document in wanted:
                    found[document] = line.decode().rstrip("\n")
        return [found[int(self.rows["document"][text])] for text in texts]

    def close(self) -> None:
        self._ids.close()


def cut(tokens: Tokens, longest: int, ends_line: npt.NDArray[np.bool_]) -> Iterator[Tokens]:
    """Cut a document, int32 ``[t]``, into pieces of at most ``longest`` tokens.

    A piece ends after the last end of a line in its last quarter, so that code and prose are cut where their authors
    paused; without one it has ``longest`` tokens. ``ends_line`` ``[vocab]`` says which tokens end with a line feed.
    """
    first = 0
    while len(tokens) - first > longest:
        window = tokens[first : first + longest]
        early = longest - longest // SLACK
        ends = np.flatnonzero(ends_line[window[early:]])
        size = early + int(ends[-1]) + 1 if len(ends) else longest
        yield window[:size]
        first += size
    yield tokens[first:]
