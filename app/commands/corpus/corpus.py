"""``spectra corpus``: builds snapshots of texts and manages their versions in stores."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from app.commands.corpus import build
from app.corpus import publication
from app.inputs.stores import DEFAULT_NAMESPACE, named_errors
from engine.errors import ConfigError
from retrieval_store.snapshots.names import is_version
from retrieval_store.snapshots.snapshot import check_sizes, read_manifest
from retrieval_store.stores.base import Store
from retrieval_store.stores.records import Current

STORE_FLAG = "--store"
PAGE = 1000  # entries of the log read at once


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build.add(actions)
    publish_ = _add(actions, "publish", publish, "upload a snapshot and make it the current version")
    publish_.add_argument("folder", type=Path, metavar="DIR", help="a snapshot of 'spectra corpus build'")
    publish_.add_argument("--no-activate", action="store_true", help="do not change the current version")
    says = "time until a version that is not activated expires (default: a day)"
    publish_.add_argument("--unused", type=float, metavar="SECONDS", help=says)
    list_ = _add(actions, "list", list_versions, "show all versions of a namespace")
    list_.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    activate_ = _add(actions, "activate", activate, "make a published version the current one")
    activate_.add_argument("version", metavar="VERSION", help="a version that 'list' shows, or its unique beginning")
    for parser_ in (publish_, activate_):
        says = "fail unless 'list' still shows this revision (default: any revision)"
        parser_.add_argument("--expect", type=int, metavar="REVISION", help=says)
    _add(actions, "rollback", rollback, "make the previous version current again")
    stats_ = _add(actions, "stats", stats, "describe a snapshot", needs_store=False)
    stats_.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="default: the store's current snapshot")
    stats_.add_argument("--json", action="store_true", help="print one JSON document instead of text")


def _add(
    actions: Any, name: str, run: Callable[[argparse.Namespace], int], help_: str, needs_store: bool = True
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=help_, description=f"{help_.capitalize()}.")
    says = "a folder, or a Redis URL; user and password come from SPECTRA_REDIS_USERNAME and SPECTRA_REDIS_PASSWORD"
    add = parser.add_argument
    add(STORE_FLAG, "--redis", dest="store", required=needs_store, metavar="URL|DIR", help=says)
    add("--namespace", default=DEFAULT_NAMESPACE, metavar="NS", help="of the store (default: %(default)s)")
    parser.set_defaults(run=run)
    return parser


def _opened(arguments: argparse.Namespace) -> AbstractContextManager[Store]:
    return publication.opened_store(arguments.store, arguments.namespace, STORE_FLAG)


def publish(arguments: argparse.Namespace) -> int:
    if arguments.no_activate and arguments.expect is not None:
        raise ConfigError("--expect is for activation, which --no-activate turns off; give only one of them")
    if arguments.unused is not None and not 0 < arguments.unused <= 1e9:
        raise ConfigError(f"--unused is {arguments.unused:g}; it must be above 0 and at most a billion seconds")
    with _opened(arguments) as store:
        publication.publish_snapshot(
            store, arguments.folder, not arguments.no_activate, arguments.expect, arguments.unused
        )
    return 0


def list_versions(arguments: argparse.Namespace) -> int:
    with _opened(arguments) as store:
        current, versions = store.current(), store.versions()
    if arguments.json:
        listed = [publication.version_json(one) for one in versions]
        print(json.dumps({**_store_json(store, current), "versions": listed}))
        return 0
    print(publication.version_table(versions) if versions else f"no versions in {publication.describe_store(store)}")
    publication.print_current(current)
    return 0


def activate(arguments: argparse.Namespace) -> int:
    with _opened(arguments) as store:
        version = _full_version(store, arguments.version)
        publication.move_current(store, lambda: store.activate(version, arguments.expect))
    return 0


def _full_version(store: Store, start: str) -> str:
    """The only version that begins with ``start``."""
    if is_version(start):  # the store reports a missing one
        return start
    known = [one.version for one in store.versions()]
    found = [version for version in known if version.startswith(start)]
    if len(found) == 1:
        return found[0]
    if not found:
        listed = ", ".join(known) or "none"
        raise ConfigError(f"no version begins with {start!r} in {publication.describe_store(store)}; there is {listed}")
    raise ConfigError(f"{len(found)} versions begin with {start!r}: {', '.join(found)}; give more characters")


def rollback(arguments: argparse.Namespace) -> int:
    with _opened(arguments) as store:
        publication.move_current(store, store.rollback)
    return 0


def stats(arguments: argparse.Namespace) -> int:
    if (arguments.folder is None) == (arguments.store is None):
        raise ConfigError(f"give either DIR, a snapshot, or {STORE_FLAG} URL|DIR, to describe its current snapshot")
    if arguments.store is None:
        with named_errors(str(arguments.folder)):
            manifest = read_manifest(arguments.folder)
            check_sizes(arguments.folder, manifest)
        if arguments.json:
            print(json.dumps(publication.manifest_json(manifest)))
        else:
            print(publication.describe_snapshot(manifest))
        return 0
    with _opened(arguments) as store:
        current = store.current()
        if not current.version:
            raise ConfigError(f"{publication.describe_store(store)} has no current snapshot")
        manifest = store.manifest(current.version)
        log = _count_log(store)
    if arguments.json:
        print(json.dumps({**_store_json(store, current), **publication.manifest_json(manifest), "log": log}))
        return 0
    print(publication.describe_snapshot(manifest))
    print(f"log: {log['texts']:,} texts, {log['tokens']:,} tokens")
    publication.print_current(current)
    return 0


def _count_log(store: Store) -> dict[str, int]:
    """Return the size of the log of live texts."""
    texts, tokens, last = 0, 0, ""
    while entries := store.entries(last, PAGE):
        last = entries[-1].id
        texts += len(entries)
        tokens += sum(len(entry.tokens) for entry in entries)
    return {"texts": texts, "tokens": tokens}


def _store_json(store: Store, current: Current) -> dict[str, Any]:
    return {
        "store": store.url,
        "namespace": store.namespace,
        "current": current.version or None,
        "revision": current.revision,
    }
