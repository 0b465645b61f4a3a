"""Stores of snapshots as command lines name them: by URL or folder and namespace, with secrets in the environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import ConfigError
from retrieval_store.errors import StoreAddressError, StoreError, StoreUnavailableError
from retrieval_store.service.manifest_feed import is_namespace

if TYPE_CHECKING:  # loads Redis' client, for which --help does not wait
    from retrieval_store.stores.base import Store

DEFAULT_NAMESPACE = "default"


def is_store(where: str) -> bool:
    """Whether ``where`` is a URL, or the folder of a store in which something was published."""
    return "://" in where or any(
        path.with_name("versions").is_dir() for path in Path(where).expanduser().glob("*/current.json")
    )


def open_store_at(where: str, namespace: str, flag: str) -> Store:
    """The store of ``namespace`` at ``where``, a URL or a folder; it is not connected to yet.

    Args:
        where: as ``flag`` was given it.
        namespace: as ``flag``'s namespace was given.
        flag: for errors.

    Raises:
        ConfigError: there is no such kind of store, or the namespace has another form.
    """
    from retrieval_store.stores.open import open_store

    if not is_namespace(namespace):
        raise ConfigError(
            f"{flag}: namespace {namespace!r} is not 1 to 128 letters, digits, dots, underscores and hyphens, no dot "
            "first"
        )
    with named_errors(flag):
        return open_store(str(Path(where).expanduser()) if where.startswith("~") else where, namespace)


@contextmanager
def named_errors(flag: str) -> Iterator[None]:
    """What a store refuses is a wrong ``flag``; what is wrong with a snapshot or version says by itself which it is.

    Raises:
        ConfigError: instead of every ``StoreError``.
    """
    try:
        yield
    except (StoreAddressError, StoreUnavailableError) as error:
        raise ConfigError(f"{flag}: {error}") from error
    except StoreError as error:
        raise ConfigError(str(error)) from error
