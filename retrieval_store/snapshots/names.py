"""How keys and paths contain namespaces and versions, whose names come from outside."""

from __future__ import annotations

import re
from urllib.parse import quote

from retrieval_store.errors import UnknownVersionError
from retrieval_store.index.index import SHARED

SHARED_SEGMENT = "@shared"  # unique, because "@" is escaped otherwise
LONGEST_SEGMENT = 200  # bytes; a folder may have 255
_VERSION = re.compile(r"[0-9a-f]{16}")


def segment(namespace: str) -> str:
    """Return ``namespace`` as part of a key or path: unique, printable, and neither ``.`` nor ``..``.

    Raises ValueError if it is too long or not valid Unicode.
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
        raise ValueError(
            f"namespace {namespace[:40]!r}... has {len(quoted)} bytes; at most {LONGEST_SEGMENT} are allowed"
        )
    return quoted


def folder_segment(namespace: str) -> str:
    """Return ``namespace`` as the name of a folder, unique even where a file system ignores case; see ``segment``."""
    name = segment(namespace)
    capitals = sum(1 << position for position, letter in enumerate(name) if letter.isupper())
    return f"{name.lower()}@{capitals:x}" if capitals else name


def is_version(text: str) -> bool:
    return _VERSION.fullmatch(text) is not None


def check_version(text: str, where: str) -> None:
    """Raise UnknownVersionError if ``text`` cannot be a version, before it becomes a path or a key."""
    if not is_version(text):
        raise UnknownVersionError(f"{where} has no version {text!r}: versions are 16 hexadecimal digits")
