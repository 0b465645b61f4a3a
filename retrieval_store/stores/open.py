"""Which kind of store a URL or path means.

``redis://``, ``rediss://``, with ``+sentinel`` or ``+cluster`` (see ``redis_url``), ``file:///FOLDER`` or a plain path,
and ``memory://NAME`` within this process.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from retrieval_store.errors import StoreAddressError
from retrieval_store.snapshots.names import segment
from retrieval_store.stores.base import Store, StoreOptions
from retrieval_store.stores.directory import DirectoryStore
from retrieval_store.stores.memory import MemoryStore
from retrieval_store.stores.redis_url import FORMS, parse_redis_url, safe

_ALMOST = re.compile(r"(rediss?(\+\w+)?):(?!//)", re.IGNORECASE)


def open_store(where: str | Path, namespace: str, options: StoreOptions | None = None) -> Store:
    """The store of ``namespace`` at ``where``. Connects to nothing yet: a store that is away says so when it is used.

    Passwords come from the environment (see ``redis_url``) or the URL.

    Raises:
        StoreAddressError: there is no such kind of store, or the namespace cannot be one.
    """
    options = options or StoreOptions()
    try:
        segment(namespace)
    except ValueError as error:
        raise StoreAddressError(str(error)) from error
    check_form(str(where))
    scheme, found, rest = str(where).partition("://")
    if isinstance(where, Path) or not found:
        return DirectoryStore(_folder(str(where)), namespace, options)
    if scheme == "file":
        return DirectoryStore(_folder_of_url(rest), namespace, options)
    if scheme == "memory":
        return MemoryStore(_name(rest), namespace, options)
    if scheme.partition("+")[0] in ("redis", "rediss"):
        from retrieval_store.stores.redis import RedisStore  # its client loads for half a second

        return RedisStore(parse_redis_url(str(where), os.environ), namespace, options)
    kinds = "redis://, rediss:// (also with +sentinel or +cluster), file:///FOLDER, memory://NAME or a folder"
    raise StoreAddressError(f"{safe(str(where))} is not a store; the kinds are {kinds}")


def check_form(where: str) -> None:
    """Refuse what was meant to be the URL of a Redis and would be taken for a path, without showing it.

    Raises:
        StoreAddressError: it begins with ``redis:`` or the like, but ``//`` does not follow.
    """
    if found := _ALMOST.match(where):
        raise StoreAddressError(f"'//' is missing behind '{found[1]}:'; the forms are {', '.join(FORMS.values())}")


def shown(where: str) -> str:
    """``where`` as it may be printed: without a password."""
    try:
        return parse_redis_url(where, {}).shown
    except StoreAddressError:
        return safe(where) if "://" in where or _ALMOST.match(where) else where


def _folder(path: str) -> Path:
    if not path or "\0" in path:
        raise StoreAddressError(f"{path!r} is not a folder")
    return Path(path)


def _folder_of_url(rest: str) -> Path:
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash or "\0" in unquote(path):
        raise StoreAddressError(f"{safe(f'file://{rest}')} is not a folder of this machine; the form is file:///FOLDER")
    return Path("/" + unquote(path))


def _name(name: str) -> str:
    if not name or not name.isprintable() or "/" in name:
        raise StoreAddressError(
            f"memory://{name}: the name must be printable and without '/'; the form is memory://NAME"
        )
    return name
