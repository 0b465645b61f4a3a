"""The log of live texts of a directory store: one SQLite file, which several processes may read and write."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from retrieval_store.errors import StoreError, StoreUnavailableError
from retrieval_store.stores.live_text import format_id, next_id

# AUTOINCREMENT: ids grow even after all entries were trimmed.
_TABLE = "CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY AUTOINCREMENT, tokens BLOB NOT NULL)"
_STEP = 1000  # numbers within a millisecond; a row's id is milliseconds * _STEP + number


class DirectoryLog:
    """Entries of one namespace. It waits ``timeout`` seconds for other writers; ``where`` is for messages."""

    def __init__(self, folder: Path, where: str, timeout: float) -> None:
        self.path = folder / "log.sqlite"
        self._where, self._timeout = where, timeout

    def append(self, texts: Sequence[bytes], limit: int) -> None:
        with self._opened() as database, database:
            database.execute("BEGIN IMMEDIATE")
            row = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'log'").fetchone()
            last = int(row[0]) if row else 0
            for text in texts:
                last = _row(next_id(divmod(last, _STEP)))
                database.execute("INSERT INTO log VALUES (?, ?)", (last, text))
            kept = "SELECT id FROM log ORDER BY id DESC LIMIT 1 OFFSET ?"
            database.execute(f"DELETE FROM log WHERE id <= ({kept})", (limit,))

    def entries(self, after: tuple[int, int], limit: int) -> list[tuple[str, bytes]]:
        if not self.path.is_file():
            return []
        with self._opened() as database:
            query = "SELECT id, tokens FROM log WHERE id > ? ORDER BY id LIMIT ?"
            found = database.execute(query, (_row(after), limit))
            return [(format_id(divmod(row, _STEP)), raw if isinstance(raw, bytes) else b"?") for row, raw in found]

    def trim(self, upto: tuple[int, int]) -> None:
        if self.path.is_file():
            with self._opened() as database, database:
                database.execute("DELETE FROM log WHERE id <= ?", (_row(upto),))

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite would let others read it
            with closing(sqlite3.connect(self.path, timeout=self._timeout, isolation_level=None)) as database:
                database.execute(_TABLE)
                yield database
        except (OSError, sqlite3.OperationalError) as error:  # the latter: locked for too long, no such folder, full
            reason = error.strerror if isinstance(error, OSError) else error
            raise StoreUnavailableError(f"{self._where}: the log is not available: {reason}") from error
        except sqlite3.Error as error:
            raise StoreError(f"{self._where}: the log is damaged: {error}; remove {self.path}") from error


def _row(key: tuple[int, int]) -> int:
    return min(key[0] * _STEP + min(key[1], _STEP - 1), 2**63 - 1)
