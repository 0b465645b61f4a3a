"""Reading and changing the file of keys, beside servers that read it and other commands that change it."""

from __future__ import annotations

import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from app.access.records import KEY_PREFIX, KeyRecord, parse_records
from engine.errors import ConfigError

KEY_BYTES = 32  # of randomness in a key
Signature = tuple[int, int, int]  # of a file's content: inode, size, time of change


def new_key() -> str:
    """A random key; only its digest is ever written down."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def digest_of(key: str) -> str:
    """What the file holds of a key."""
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def signature(path: Path) -> Signature | None:
    """Changes when the file does; None if it cannot be seen."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_records(path: Path) -> list[KeyRecord]:
    """The records of a file.

    Raises:
        ConfigError: the file cannot be read, or a record is wrong.
    """
    return parse_records(_content(path), str(path))


@contextmanager
def changing(path: Path) -> Iterator[list[bytes]]:
    """The lines of a file, to be changed in place; they are checked, and replace the file at once, with mode 0600.

    No other command changes the file meanwhile; servers see the old file or the new one.

    Raises:
        ConfigError: the file cannot be read or written, or a record is wrong, before or after the change.
    """
    path = path.resolve()  # a link stays one
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"{path.parent} cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        lines = _content(path).splitlines() if path.exists() else []
        parse_records(b"\n".join(lines), str(path))
        yield lines
        content = b"".join(line + b"\n" for line in lines)
        parse_records(content, str(path))
        _replace(path, content, folder)
    finally:
        os.close(folder)  # and with it the lock


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _replace(path: Path, content: bytes, folder: int) -> None:
    try:
        number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
        try:
            with os.fdopen(number, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        os.fsync(folder)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
