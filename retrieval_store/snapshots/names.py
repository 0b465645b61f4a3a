"""How namespaces and versions are written in keys and paths; names from outside are checked here."""

from __future__ import annotations

import re
from urllib.parse import quote

from retrieval_store.errors import UnknownVersionError
from retrieval_store.index.index import SHARED

SHARED_SEGMENT = "@shared"  # "@" never appears otherwise: it is escaped
LONGEST_SEGMENT = 200  # bytes; a folder may have 255
_VERSION = re.compile(r"[0-9a-f]{16}")


def segment(namespace: str) -> str:
    """``namespace`` as part of a key or path: one to one, printable, and never a folder's ``.`` or ``..``.

    Raises:
        ValueError: it is too long, or not valid Unicode.
    """
    if namespace == SHARED:
        return SHARED_SEGMENT
    try:
        quoted = quote(namespace, safe="")
    except UnicodeEncodeError as error:
        raise ValueError(f"namespace {namespace!r} is not valid Unicode") from error
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    if len(quoted) > LONGEST_SEGMENT:
        raise ValueError(f"namespace {namespace[:40]!r}... is too long: {len(quoted)} bytes of {LONGEST_SEGMENT}")
    return quoted


def folder_segment(namespace: str) -> str:
    """``segment`` as a folder's name: one to one also where a file system does not tell capitals from small letters.

    Raises:
        ValueError: see ``segment``.
    """
    name = segment(namespace)
    capitals = sum(1 << position for position, letter in enumerate(name) if letter.isupper())
    return f"{name.lower()}@{capitals:x}" if capitals else name


def is_version(text: str) -> bool:
    """Whether a version can be written like this."""
    return _VERSION.fullmatch(text) is not None


def check_version(text: str, where: str) -> None:
    """Refuse what cannot be a version before it becomes a path or a key.

    Raises:
        UnknownVersionError: it cannot.
    """
    if not is_version(text):
        raise UnknownVersionError(f"{where} has no version {text!r}: versions are 16 hexadecimal digits")
