"""Publishes snapshots to stores, and describes snapshots and their versions as text and as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from app.inputs.stores import named_errors, open_store_at
from app.reporting.report import columns
from retrieval_store.errors import ConflictError
from retrieval_store.snapshots.snapshot import Manifest, read_manifest
from retrieval_store.stores.base import Store
from retrieval_store.stores.records import Current, Published


@contextmanager
def opened_store(where: str, namespace: str, flag: str) -> Iterator[Store]:
    """The store of ``namespace`` at ``where``, the value of ``flag``; errors of the store become ConfigError."""
    with named_errors(flag), closing(open_store_at(where, namespace, flag)) as store:
        yield store


def publish_snapshot(
    store: Store, folder: Path, activate: bool = True, expected: int | None = None, unused: float | None = None
) -> None:
    """Upload the snapshot in ``folder`` and print its version; make it current if ``activate``."""
    manifest = read_manifest(folder)
    version = store.publish(folder, unused)
    content = f"{manifest.texts:,} texts, {manifest.tokens:,} tokens, {format_size(manifest.bytes)}"
    print(f"published {version} ({content}) in {describe_store(store)}")
    if not activate:
        _print_expiry(store, version, "unless it is activated before")
        return
    try:
        move_current(store, lambda: store.activate(version, expected))
    except ConflictError as error:
        raise ConflictError(f"{error}; {version} is published, but not current") from error


def move_current(store: Store, move: Callable[[], Current]) -> None:
    """Move ``current``; print its new version, and when the previous version expires."""
    before, now = store.current(), move()
    if before.version not in ("", now.version):
        _print_expiry(store, before.version, "and can be current again until then")
    print_current(now)


def _print_expiry(store: Store, version: str, condition: str) -> None:
    for one in store.versions():
        if one.version == version and one.expires_at is not None:
            print(f"{version} expires at {format_time(one.expires_at)}, {condition}")


def print_current(current: Current) -> None:
    print(f"current: {current.version or 'none'} (revision {current.revision})")


def describe_store(store: Store) -> str:
    return f"{store.url}, namespace {store.namespace}"


def manifest_json(manifest: Manifest) -> dict[str, Any]:
    """A manifest and the snapshot's size as JSON values."""
    return {**msgspec.to_builtins(manifest), "bytes": manifest.bytes}


def version_json(one: Published) -> dict[str, Any]:
    """One version of a store as JSON values."""
    found = {"version": one.version, "problem": one.problem} if one.manifest is None else manifest_json(one.manifest)
    return {**found, "is_current": one.is_current, "expires_at": one.expires_at}


def version_table(versions: list[Published]) -> str:
    """Versions as a table with a star at the current one; below it, why some cannot be read."""
    rows: list[tuple[str, ...]] = [("", "version", "created", "texts", "tokens", "size", "expires")]
    for one in versions:
        made, mark = one.manifest, "*" if one.is_current else ""
        expiry = "" if one.expires_at is None else format_time(one.expires_at)
        shown = ("unreadable", "", "", "")
        if made is not None:
            shown = (format_time(made.created), f"{made.texts:,}", f"{made.tokens:,}", format_size(made.bytes))
        rows.append((mark, one.version, *shown, expiry))
    problems = [f"unreadable: {one.problem}" for one in versions if one.problem]
    return "\n".join([columns(rows, left=(0, 1, 2, 6)), *problems])


def describe_snapshot(manifest: Manifest) -> str:
    about = manifest.about
    range_ = about.perplexity
    rows = [
        ("version", manifest.version),
        ("created", format_time(manifest.created)),
        ("texts", f"{manifest.texts:,}"),
        ("tokens", f"{manifest.tokens:,}"),
        ("windows", f"{manifest.windows:,} different, of {manifest.window} tokens"),
        ("contexts", f"{manifest.contexts:,}"),
        ("size", format_size(manifest.bytes)),
        *((f"  {name}", format_size(entry.bytes)) for name, entry in sorted(manifest.files.items())),
        ("tokenizer", f"{about.tokenizer_hash}, {about.vocab_size:,} ids"),
        ("model", f"{about.model} {about.model_hash}".rstrip() or "none"),
        ("perplexity", "unrefined" if range_ is None else f"{range_[0]:.2f} to {range_[1]:.2f}"),
        *((f"  {one.name}", f"{one.kept:,} of {one.texts:,} texts kept") for one in about.sources),
    ]
    return columns(rows, left=(0, 1))


def format_size(n_bytes: float) -> str:
    """Bytes as text, such as 1.23MB."""
    return str(tqdm.format_sizeof(n_bytes, "B"))


def format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
