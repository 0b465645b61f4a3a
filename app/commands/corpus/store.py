"""``spectra corpus publish|list|activate|rollback|stats``: snapshots in stores, from the command line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.corpus.publication import move, place, print_current, publish_snapshot
from app.inputs.stores import DEFAULT_NAMESPACE, named_errors, open_store_at
from engine.errors import ConfigError
from retrieval_store.snapshots.names import is_version

if TYPE_CHECKING:  # --help reads no manifest
    from retrieval_store.stores.base import Store
    from retrieval_store.stores.records import Current

Run = Callable[[argparse.Namespace], int]
STORE_FLAG = "--store"
PAGE = 1000  # entries of the log read at once


def add(actions: Any) -> None:
    """Add the actions."""
    publish_ = _action(actions, "publish", publish, "upload a snapshot, and make it the current one")
    publish_.add_argument("folder", type=Path, metavar="DIR", help="the snapshot, as 'spectra corpus build' writes it")
    publish_.add_argument("--no-activate", action="store_true", help="leave the current version as it is")
    publish_.add_argument(
        "--unused",
        type=float,
        metavar="SECONDS",
        help="the version expires unless it is activated within this time (default: a day)",
    )
    _add_expect(publish_)
    list_ = _action(actions, "list", list_versions, "all versions of a namespace")
    list_.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    activate_ = _action(actions, "activate", activate, "make a published version the current one")
    activate_.add_argument("version", metavar="VERSION", help="as 'list' shows it, or how it alone begins")
    _add_expect(activate_)
    _action(actions, "rollback", rollback, "make the version before the current one current again")
    stats_ = _action(actions, "stats", stats, "what a snapshot holds", needs_store=False)
    stats_.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="a snapshot; else the store's current one")
    stats_.add_argument("--json", action="store_true", help="one JSON document instead of text")


def _action(actions: Any, name: str, run: Run, help_: str, needs_store: bool = True) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=help_, description=f"{help_.capitalize()}.")
    parser.add_argument(
        STORE_FLAG,
        "--redis",
        dest="store",
        required=needs_store,
        metavar="URL|DIR",
        help="redis://, rediss:// and the like, or a folder; user and password are taken from SPECTRA_REDIS_USERNAME "
        "and SPECTRA_REDIS_PASSWORD",
    )
    parser.add_argument(
        "--namespace", default=DEFAULT_NAMESPACE, metavar="NS", help=f"of the store (default: {DEFAULT_NAMESPACE})"
    )
    parser.set_defaults(run=run)
    return parser


def _add_expect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--expect",
        type=int,
        metavar="REVISION",
        help="only if 'current' has not moved since 'list' showed this revision (default: whatever it has now)",
    )


def publish(arguments: argparse.Namespace) -> int:
    """Upload, and activate unless told not to."""
    if arguments.no_activate and arguments.expect is not None:
        raise ConfigError("--expect says when to activate, --no-activate that nothing is: give one of them")
    if arguments.unused is not None and not 0 < arguments.unused <= 1e9:
        raise ConfigError(f"--unused is {arguments.unused:g}; it must be above 0 seconds, and a billion at most")
    with named_errors(STORE_FLAG), closing(_open(arguments)) as store:
        publish_snapshot(store, arguments.folder, not arguments.no_activate, arguments.expect, arguments.unused)
    return 0


def list_versions(arguments: argparse.Namespace) -> int:
    """Print all versions."""
    from app.corpus.stats import published_json, version_table

    with named_errors(STORE_FLAG), closing(_open(arguments)) as store:
        current, versions = store.current(), store.versions()
    if arguments.json:
        print(json.dumps({**_where(store, current), "versions": [published_json(one) for one in versions]}))
        return 0
    print(version_table(versions) if versions else f"no versions in {place(store)}")
    print_current(current)
    return 0


def activate(arguments: argparse.Namespace) -> int:
    """Move ``current``."""
    with named_errors(STORE_FLAG), closing(_open(arguments)) as store:
        version = full_version(store, arguments.version)
        move(store, lambda: store.activate(version, arguments.expect))
    return 0


def full_version(store: Store, start: str) -> str:
    """The only version that begins with ``start``.

    Raises:
        ConfigError: there is none, or more than one.
    """
    if is_version(start):  # the store says whether it is there
        return start
    known = [one.version for one in store.versions()]
    found = [version for version in known if version.startswith(start)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(f"no version begins with {start!r} in {place(store)}; there is {', '.join(known) or 'none'}")
    raise ConfigError(f"{len(found)} versions begin with {start!r}: {', '.join(found)}")


def rollback(arguments: argparse.Namespace) -> int:
    """Move ``current`` back."""
    with named_errors(STORE_FLAG), closing(_open(arguments)) as store:
        move(store, store.rollback)
    return 0


def stats(arguments: argparse.Namespace) -> int:
    """Print what a snapshot holds."""
    if (arguments.folder is None) == (arguments.store is None):
        raise ConfigError(f"stats needs either DIR, a snapshot, or {STORE_FLAG} URL|DIR, whose current one it tells of")
    return _stats_of_folder(arguments) if arguments.store is None else _stats_of_current(arguments)


def _stats_of_folder(arguments: argparse.Namespace) -> int:
    from app.corpus.stats import as_json, snapshot_report
    from retrieval_store.snapshots.snapshot import check_sizes, read_manifest

    with named_errors(str(arguments.folder)):
        manifest = read_manifest(arguments.folder)
        check_sizes(arguments.folder, manifest)
    print(json.dumps(as_json(manifest)) if arguments.json else snapshot_report(manifest))
    return 0


def _stats_of_current(arguments: argparse.Namespace) -> int:
    from app.corpus.stats import as_json, snapshot_report

    with named_errors(STORE_FLAG), closing(_open(arguments)) as store:
        current = store.current()
        if not current.version:
            raise ConfigError(f"{place(store)} has no current snapshot")
        manifest = store.manifest(current.version)
        texts, tokens = _log_length(store)
    if arguments.json:
        log = {"texts": texts, "tokens": tokens}
        print(json.dumps({**_where(store, current), **as_json(manifest), "log": log}))
        return 0
    print(snapshot_report(manifest))
    print(f"log: {texts:,} texts, {tokens:,} tokens")
    print_current(current)
    return 0


def _log_length(store: Store) -> tuple[int, int]:
    """(texts, tokens) of the log of live texts."""
    texts, tokens, last = 0, 0, ""
    while entries := store.entries(last, PAGE):
        last = entries[-1].id
        texts += len(entries)
        tokens += sum(len(entry.tokens) for entry in entries)
    return texts, tokens


def _open(arguments: argparse.Namespace) -> Store:
    return open_store_at(arguments.store, arguments.namespace, STORE_FLAG)


def _where(store: Store, current: Current) -> dict[str, Any]:
    return {
        "store": store.url,
        "namespace": store.namespace,
        "current": current.version or None,
        "revision": current.revision,
    }
