"""The texts of a corpus on disk while it is refined: token ids one behind the other, and a table of where each begins.

A folder with four files: ``ids`` (uint32), ``rows`` (``ROW``), ``origins`` (a line per document) and ``state.json``,
which says how much of the others counts. Bytes behind that were being written when the process died, and are cut off.
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
        """Bytes of each file."""
        return {IDS: 4 * self.tokens, ROWS: ROW.itemsize * self.texts, ORIGINS: self.origins}


def read_state(folder: Path) -> FolderState:
    """The state in ``folder``; nothing counts where files are missing or shorter than it says."""
    try:
        state = msgspec.json.decode((folder / STATE).read_bytes(), type=FolderState)
        is_there = all((folder / name).stat().st_size >= size for name, size in state.sizes.items())
    except (OSError, msgspec.DecodeError):
        return FolderState()
    return state if is_there else FolderState()


class TextWriter:
    """Appends documents behind those that ``state`` counts; nothing appended counts before ``save``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.state = read_state(folder)
        self._folder = folder
        self._files = {name: (folder / name).open("ab") for name in (IDS, ROWS, ORIGINS)}
        for name, size in self.state.sizes.items():
            self._files[name].truncate(size)

    def add(self, pieces: Iterable[Tokens], source: int, origin: str) -> None:
        """Append a document: its texts, the number of the input it is from, and where exactly."""
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
        """Make everything appended so far count, whatever happens from now on."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self.state = msgspec.structs.replace(self.state, is_complete=is_complete)
        beside = self._folder / (STATE + ".new")
        beside.write_bytes(msgspec.json.encode(self.state))
        beside.replace(self._folder / STATE)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def hash_of(raw: bytes) -> int:
    """64 bits of a text's ids: of 10 million texts, one is taken for another in some hundred thousand corpora."""
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


class FolderTexts:
    """All texts of a complete folder, for reading; numbered in the order in which they were appended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ids = (folder / IDS).open("rb")
        self.rows: Rows = np.fromfile(folder / ROWS, ROW, count=read_state(folder).texts)

    def __len__(self) -> int:
        return len(self.rows)

    def tokens(self, text: int) -> Tokens:
        """The ids of a text, int32 ``[t]``: read here and now, so that no memory fills up with mapped pages."""
        row = self.rows[text]
        raw = os.pread(self._ids.fileno(), 4 * int(row["length"]), 4 * int(row["offset"]))
        return np.frombuffer(raw, "<i4")

    def origins(self, texts: Sequence[int]) -> list[str]:
        """Where texts are from; reads the file of origins once."""
        wanted = {int(self.rows["document"][text]) for text in texts}
        found: dict[int, str] = {}
        with (self.folder / ORIGINS).open("rb") as file:
            for document, line in enumerate(file):
                if document in wanted:
                    found[document] = line.decode().rstrip("\n")
        return [found[int(self.rows["document"][text])] for text in texts]

    def close(self) -> None:
        """Close the file."""
        self._ids.close()


def cut(tokens: Tokens, longest: int, ends_line: npt.NDArray[np.bool_]) -> Iterator[Tokens]:
    """Pieces of at most ``longest`` tokens; together they are the document.

    A piece ends behind the last end of a line in its last quarter, so that code and prose are cut where their authors
    paused; without one it is as long as it may be.

    Args:
        tokens: int32 ``[t]``.
        longest: tokens of a piece.
        ends_line: ``[vocab]``, which tokens end with a line feed.
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
