"""Records kept on disk as JSON lines, so that an interrupted run continues after its last record."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import msgspec

from engine.errors import ConfigError


class Keyed(Protocol):
    """A msgspec structure with a key that is unique in its file."""

    @property
    def key(self) -> Hashable: ...


Record = TypeVar("Record", bound=Keyed)


class _Header(msgspec.Struct, frozen=True):
    """First line of a file."""

    settings: dict[str, Any]


class RecordFile(Generic[Record]):
    """Records of one kind on disk, to which one process at a time appends.

    Every record is on disk when ``append`` returns, so a killed run loses at most the record it was writing. Raises
    ConfigError if the file holds records of other settings or other lines, is in use, or cannot be made.

    Args:
        path: of the file; made with its folder if missing. An unfinished last line is dropped.
        settings: everything that decides the content of records; JSON values.
        remedy: what to do about a file of other settings, for errors.
        restart: drop the records in the file.
        waits: if another process has the file open, wait until it closes the file, and say so on stderr.
    """

    def __init__(
        self,
        path: Path,
        kind: type[Record],
        settings: Mapping[str, Any],
        remedy: str,
        restart: bool = False,
        waits: bool = False,
    ) -> None:
        self.path = path
        self.by_key: dict[Hashable, Record] = {}  # of two records with the same key, the later one
        self._header = _Header(msgspec.json.decode(msgspec.json.encode(dict(settings))))
        self._remedy = remedy
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if not waits:
                    raise ConfigError(f"{path} is in use: another process is writing to it") from error
                print(f"spectra: waiting until another process closes {path}", file=sys.stderr)
                fcntl.flock(self._file, fcntl.LOCK_EX)
            if restart:
                self._file.truncate(0)
            self._read(kind)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    @property
    def records(self) -> list[Record]:
        return list(self.by_key.values())

    def append(self, record: Record) -> None:
        self.by_key[record.key] = record
        self._write(record)

    def drop(self, keys: Iterable[Hashable]) -> None:
        """Remove records, also from the file; a process that is killed meanwhile may lose all of them."""
        if [key for key in keys if self.by_key.pop(key, None) is not None]:
            self._file.truncate(0)
            self._write(self._header, *self.by_key.values())

    def _read(self, kind: type[Record]) -> None:
        self._file.seek(0)
        *lines, unfinished = self._file.read().split(b"\n")
        self._file.truncate(self._file.tell() - len(unfinished))
        if not lines:
            self._write(self._header)
        for number, line in enumerate(lines, start=1):
            try:
                if number == 1:
                    self._check(msgspec.json.decode(line, type=_Header).settings)
                else:
                    record = msgspec.json.decode(line, type=kind)
                    self.by_key[record.key] = record
            except msgspec.DecodeError as error:
                raise ConfigError(f"{self.path}, line {number}: {error}; {self._remedy}") from error

    def _check(self, theirs: dict[str, Any]) -> None:
        mine = self._header.settings
        differ = [name for name in {**theirs, **mine} if mine.get(name) != theirs.get(name)]
        changes = "; ".join(f"{name}: {theirs.get(name)!r} there, {mine.get(name)!r} now" for name in differ)
        if changes:
            raise ConfigError(f"{self.path} holds records of other settings ({changes}): {self._remedy}")

    def _write(self, *values: object) -> None:
        self._file.write(b"".join(msgspec.json.encode(value) + b"\n" for value in values))
        self._file.flush()
        os.fsync(self._file.fileno())
