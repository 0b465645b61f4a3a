"""The key file, JSON lines with a record a key: reading it, and changing it while servers and other commands use it.

It holds the digests of keys, never a key.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from app.config.errors import RIGHT
from app.config.fields import NAMESPACE_PATTERN
from app.inputs.stores import NAMESPACE_FORM
from engine.errors import ConfigError, UnknownMethodError
from speculators.methods import check_name

TENANT_PATTERN = r"^[A-Za-z0-9._@:+-]{1,128}$"
FORMS = {
    "id": "1 to 64 letters, digits, '.', '_' and '-'",
    "sha256": "the 64 hexadecimal digits of the key's SHA-256",
    "tenant": "1 to 128 letters, digits, '.', '_', '@', ':', '+' and '-'",
    "namespaces": NAMESPACE_FORM,
    "feeds": NAMESPACE_FORM,
    "expires": "a time with its zone, as in 2030-01-31T00:00:00Z",
}
KEY_PREFIX = "sk-spectra-"
KEY_BYTES = 32  # of randomness in a key
Signature = tuple[int, int, int]  # of a file's content: inode, size, time of change
Namespace = Annotated[str, Field(pattern=NAMESPACE_PATTERN)]
Rate = Annotated[int, Field(ge=1, le=10**12)]


class KeyRecord(BaseModel):
    """What one key may do; an absent limit is no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]  # names the key in logs and to ``spectra keys``
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # of the key, in hexadecimal digits
    tenant: Annotated[str, Field(pattern=TENANT_PATTERN)]
    namespaces: tuple[Namespace, ...] = ()  # requests may draft from their texts, in addition to the shared ones
    feeds: tuple[Namespace, ...] = ()  # namespaces that may learn from the answers
    max_priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0  # lowest number a request may give: it goes first
    methods: tuple[str, ...] | None = None  # drafting methods that requests may name
    max_nodes: Annotated[int, Field(ge=0, le=4096)] | None = None  # drafted nodes per step
    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None  # of prompts and answers together
    max_concurrent: Rate | None = None  # requests under way at once
    expires: AwareDatetime | None = None
    admin: bool = False  # may read /metrics

    @field_validator("methods")
    @classmethod
    def _methods_exist(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in value or ():
            try:
                check_name(name)
            except UnknownMethodError as error:
                raise ValueError(str(error)) from None
        return value


def parse_records(text: bytes, where: str) -> list[KeyRecord]:
    """The records of a file of keys; empty lines are skipped.

    Raises:
        ConfigError: names ``where``, line, field and value, and what is allowed; hides a value that may be a key.
    """
    records: list[KeyRecord] = []
    seen: dict[tuple[str, str], int] = {}  # field and value -> line
    for number, line in enumerate(text.split(b"\n"), 1):
        if not line.strip():
            continue
        place = f"{where}, line {number}"
        record = parse_record(line, place)
        for field, value, shown in (("id", record.id, f"{record.id} "), ("sha256", record.sha256, "")):
            first = seen.setdefault((field, value), number)
            if first != number:
                raise ConfigError(f"{place}: {field} {shown}is that of line {first} too; every key has its own")
        records.append(record)
    return records


def parse_record(line: bytes, place: str) -> KeyRecord:
    """One record; raises ConfigError as `parse_records`, with ``place`` in front."""
    if KEY_PREFIX.encode() in line:
        raise ConfigError(f"{place} holds a key; only its SHA-256 belongs there, and this key is no secret any more")
    try:
        return KeyRecord.model_validate_json(line)
    except ValidationError as error:
        raise ConfigError(f"{place}: {_sentence(error.errors(include_url=False)[0])}") from None


def _sentence(error: ErrorDetails) -> str:
    if not error["loc"]:
        return "it is no JSON object; a line is one object, as `spectra keys new` writes it"
    field, name, kind = ".".join(map(str, error["loc"])), str(error["loc"][0]), error["type"]
    if kind == "missing":
        return f"{name} is missing"
    if kind == "extra_forbidden":
        return f"{name[:64]} is unknown; the fields are {', '.join(KeyRecord.model_fields)}"
    context = error.get("ctx", {})
    if kind == "value_error":
        return f"{field}: {context.get('error')}"
    right = RIGHT.get(kind, "").format(**context) or FORMS.get(name) or error["msg"].removeprefix("Input should be ")
    shown = "something else" if name == "sha256" else repr(error["input"])  # it may be a key, put there by mistake
    return f"{field} is {shown if len(shown) <= 64 else shown[:60] + ' ...'}; it must be {right}"


def new_key() -> str:
    """A random key; only its digest is ever written down."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def digest_of(key: str) -> str:
    """The SHA-256 of a key, in hexadecimal digits."""
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def signature(path: Path) -> Signature | None:
    """Changes when the file does; None if it cannot be seen."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_records(path: Path) -> list[KeyRecord]:
    """The records of a file; raises ConfigError if it cannot be read, or a record is wrong."""
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
