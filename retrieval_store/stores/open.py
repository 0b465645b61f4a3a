"""Opens the store at a URL or path: ``redis[s][+sentinel|+cluster]://`` (see ``redis_url``), ``file:///FOLDER`` or a
plain path, or ``memory://NAME`` within this process.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from retrieval_store.errors import StoreAddressError
from retrieval_store.snapshots.names import segment
from retrieval_store.stores.base import Store
from retrieval_store.stores.directory import DirectoryStore
from retrieval_store.stores.memory import MemoryStore
from retrieval_store.stores.records import StoreOptions
from retrieval_store.stores.redis_url import FORMS, parse_redis_url, safe

_ALMOST = re.compile(r"(rediss?(\+\w+)?):(?!//)", re.IGNORECASE)


def open_store(where: str | Path, namespace: str, options: StoreOptions | None = None) -> Store:
    """Return the store of ``namespace`` at ``where``, or raise StoreAddressError; it connects when it is first used."""
    options = options or StoreOptions()
    try:
        segment(namespace)
    except ValueError as error:
        raise StoreAddressError(str(error)) from error
    check_form(str(where))
    scheme, found, rest = str(where).partition("://")
    if isinstance(where, Path) or not found:
        if not str(where) or "\0" in str(where):
            raise StoreAddressError(f"{where!r} is not a folder")
        return DirectoryStore(Path(where), namespace, options)
    if scheme == "file":
        host, slash, path = unquote(rest).partition("/")
        if host not in ("", "localhost") or not slash or "\0" in path:
            raise StoreAddressError(f"{safe(str(where))} is not a folder of this machine; use file:///FOLDER")
        return DirectoryStore(Path("/" + path), namespace, options)
    if scheme == "memory":
        if not rest or not rest.isprintable() or "/" in rest:
            raise StoreAddressError(f"{where!r} needs a printable name without '/'; the form is memory://NAME")
        return MemoryStore(rest, namespace, options)
    if scheme.partition("+")[0] in ("redis", "rediss"):
        from retrieval_store.stores.redis import RedisStore  # its client loads for half a second

        return RedisStore(parse_redis_url(str(where), os.environ), namespace, options)
    kinds = "redis://, rediss:// (also with +sentinel or +cluster), file:///FOLDER, memory://NAME or a folder"
    raise StoreAddressError(f"{safe(str(where))} is not a store; the kinds are {kinds}")


def check_form(where: str) -> None:
    """Raise StoreAddressError for a URL of a Redis without ``//``, which would be taken for a path and be shown."""
    if found := _ALMOST.match(where):
        raise StoreAddressError(f"'//' is missing after '{found[1]}:'; the forms are {', '.join(FORMS.values())}")


def shown(where: str) -> str:
    """Return ``where`` without a password."""
    try:
        return parse_redis_url(where, {}).shown
    except StoreAddressError:
        return safe(where) if "://" in where or _ALMOST.match(where) else where
