"""Snapshots and their versions in a store as text and as JSON, made from their manifests."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from app.reporting.report import columns
from retrieval_store.snapshots.snapshot import Manifest
from retrieval_store.stores.records import Published

UNITS = ("bytes", "kB", "MB", "GB", "TB")


def as_json(manifest: Manifest) -> dict[str, Any]:
    """A manifest and its size as plain JSON values."""
    plain: dict[str, Any] = msgspec.to_builtins(manifest)
    return {**plain, "bytes": manifest.bytes}


def published_json(one: Published) -> dict[str, Any]:
    """One version of a store as plain JSON values."""
    found = {"version": one.version, "problem": one.problem} if one.manifest is None else as_json(one.manifest)
    return {**found, "is_current": one.is_current, "expires_at": one.expires_at}


def version_table(versions: list[Published]) -> str:
    """Versions as a table with a star before the current one; below it, why some cannot be read."""
    head = ("", "version", "created", "texts", "tokens", "size", "expires")
    table = columns([head, *(_row(one) for one in versions)], left=(0, 1, 2, 6))
    return "\n".join([table, *(f"unreadable: {one.problem}" for one in versions if one.problem)])


def _row(one: Published) -> tuple[str, ...]:
    made = one.manifest
    expiry = "" if one.expires_at is None else when(one.expires_at)
    mark = "*" if one.is_current else ""
    if made is None:
        return mark, one.version, "unreadable", "", "", "", expiry
    return mark, one.version, when(made.created), f"{made.texts:,}", f"{made.tokens:,}", size(made.bytes), expiry


def snapshot_report(manifest: Manifest) -> str:
    """All entries of a manifest, line by line."""
    about = manifest.about
    range_ = about.perplexity
    rows = [
        ("version", manifest.version),
        ("created", when(manifest.created)),
        ("texts", f"{manifest.texts:,}"),
        ("tokens", f"{manifest.tokens:,}"),
        ("windows", f"{manifest.windows:,} different ones, of {manifest.window} tokens"),
        ("contexts", f"{manifest.contexts:,}"),
        ("size", size(manifest.bytes)),
        *((f"  {name}", size(entry.bytes)) for name, entry in sorted(manifest.files.items())),
        ("tokenizer", f"{about.tokenizer_hash}, {about.vocab_size:,} ids"),
        ("model", f"{about.model} {about.model_hash}".rstrip() or "none"),
        ("perplexity", "unrefined" if range_ is None else f"{range_[0]:.2f} to {range_[1]:.2f}"),
        *((f"  {one.name}", f"{one.kept:,} of {one.texts:,} texts kept") for one in about.sources),
    ]
    return columns(rows, left=(0, 1))


def size(n_bytes: float) -> str:
    """Bytes in the largest unit that leaves a figure of at least 1."""
    unit = 0
    while n_bytes >= 999.5 and unit < len(UNITS) - 1:
        n_bytes /= 1000
        unit += 1
    return f"{n_bytes:.0f} {UNITS[unit]}" if unit == 0 else f"{n_bytes:.3g} {UNITS[unit]}"


def when(seconds: float) -> str:
    """A time in UTC, to the minute."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
