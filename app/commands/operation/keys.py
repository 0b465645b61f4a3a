"""``spectra keys``: make, list and revoke the keys of a file that ``spectra serve --api-keys`` reads."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from app.access.key_file import KeyRecord, changing, digest_of, new_key, parse_record, parse_records, read_records
from app.reporting.report import columns
from engine.errors import ConfigError

DESCRIPTION = """\
Keys for `spectra serve --api-keys FILE`. A line of the file says what one key may do; it holds the key's SHA-256, never
the key. Servers read the file anew within a second or so of a change; a change replaces the file at once.

  spectra keys new --file keys.jsonl --tenant acme --namespaces acme --feeds acme --requests-per-minute 600
  spectra keys list --file keys.jsonl
  spectra keys revoke --file keys.jsonl ID
"""
NEW = """\
Add a key and print it, once: it cannot be shown again. Clients send it as `Authorization: Bearer KEY`; it is the
api_key of OpenAI's clients. What is not given is not permitted (namespaces, feeds, admin) or not limited (methods,
nodes, rates, expiry).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Make ``parser`` that of ``spectra keys``."""
    commands = parser.add_subparsers(dest="keys_command", required=True, metavar="COMMAND")
    new = commands.add_parser("new", help="add a key and print it once", description=NEW)
    _add_new(new)
    new.set_defaults(run=_new)
    says = "what each key may do, without the keys"
    listed = commands.add_parser("list", help=says, description=f"Show {says}.")
    listed.add_argument("--json", action="store_true", help="the records as JSON lines")
    listed.set_defaults(run=_list)
    says = "Take keys out of the file. Servers refuse them from then on, and let their running requests end."
    revoke = commands.add_parser("revoke", help="take keys out of the file", description=says)
    revoke.add_argument("ids", nargs="+", metavar="ID", help="of a key, as `spectra keys list` shows it")
    revoke.set_defaults(run=_revoke)
    for command in (new, listed, revoke):
        command.add_argument("--file", type=Path, required=True, metavar="FILE", help="the file of keys (JSON lines)")


def _add_new(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tenant", required=True, metavar="NAME", help="whose key it is: tenants take turns, and share nothing")
    add("--id", metavar="ID", help="names the key in logs and here (default: the tenant and a number)")
    add("--namespaces", type=_names, default=(), metavar="A,B", help="whose texts its requests may be drafted from")
    add("--feeds", type=_names, default=(), metavar="A,B", help="namespaces that may learn from its answers")
    add("--max-priority", type=int, default=0, metavar="N", help="lowest number it may ask: it goes first (default: 0)")
    add("--methods", type=_names, metavar="A,B", help="of speculation, that its requests may name (default: all)")
    add("--max-nodes", type=int, metavar="N", help="drafted nodes per step of its requests, at most")
    add("--requests-per-minute", type=int, metavar="N", help="requests that it may send a minute")
    add(
        "--tokens-per-minute",
        type=int,
        metavar="N",
        help="tokens of prompts and answers a minute; a request reserves its max_tokens, and gets back what it leaves",
    )
    add("--max-concurrent", type=int, metavar="N", help="requests that it may have under way at once")
    add("--days", type=float, metavar="N", help="days until it expires (default: never)")
    add("--admin", action="store_true", help="it may read /metrics")


def _new(arguments: argparse.Namespace) -> int:
    key = new_key()
    with changing(arguments.file) as lines:
        taken = {record.id for record in parse_records(b"\n".join(lines), str(arguments.file))}
        name = arguments.id or _free_id(arguments.tenant, taken)
        if name in taken:
            raise ConfigError(f"--id {name} is taken; `spectra keys list` shows the keys there are")
        line = json.dumps(_fields(arguments, name, key)).encode()
        parse_record(line, "the new key")
        lines.append(line)
    print(f"Key {name} of tenant {arguments.tenant}, shown this once:", file=sys.stderr, flush=True)
    print(key)
    return 0


def _fields(arguments: argparse.Namespace, name: str, key: str) -> dict[str, Any]:
    """The record of a new key; fields that say what is so by default are left out."""
    given = {field: getattr(arguments, field, None) for field in KeyRecord.model_fields}
    given |= {"id": name, "sha256": digest_of(key)}
    if arguments.days is not None:
        try:
            given["expires"] = (datetime.now(UTC) + timedelta(days=arguments.days)).isoformat(timespec="seconds")
        except (OverflowError, ValueError):
            raise ConfigError(
                f"--days is {arguments.days:g}; it must be a number of days that a calendar has"
            ) from None
    defaults = {field: info.default for field, info in KeyRecord.model_fields.items()}
    return {field: value for field, value in given.items() if value is not None and value != defaults[field]}


def _free_id(tenant: str, taken: set[str]) -> str:
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in tenant)[:48]
    return next(name for i in range(1, len(taken) + 2) if (name := f"{stem}-{i}") not in taken)


def _list(arguments: argparse.Namespace) -> int:
    records = read_records(arguments.file)
    if arguments.json:
        for record in records:
            print(record.model_dump_json(exclude={"sha256"}, exclude_defaults=True))
        return 0
    print(f"{len(records)} keys in {arguments.file}")
    if records:
        print(columns([("id", "tenant", "may"), *((r.id, r.tenant, _may(r)) for r in records)], range(3)))
    return 0


def _may(record: KeyRecord) -> str:
    shown = record.model_dump(exclude={"id", "sha256", "tenant", "expires"}, exclude_defaults=True)
    parts = [
        name.replace("_", "-") + ("" if value is True else f" {','.join(value) if isinstance(value, tuple) else value}")
        for name, value in shown.items()
    ]
    if record.expires is not None:
        verb = "expired" if record.expires <= datetime.now(UTC) else "expires"
        parts.append(f"{verb} {record.expires.isoformat(timespec='minutes')}")
    return "; ".join(parts) or "ask, without limits"


def _revoke(arguments: argparse.Namespace) -> int:
    with changing(arguments.file) as lines:
        ids = {record.id for record in parse_records(b"\n".join(lines), str(arguments.file))}
        unknown = [name for name in arguments.ids if name not in ids]
        if unknown:
            raise ConfigError(f"there is no key {unknown[0]} in {arguments.file}; `spectra keys list` shows them")
        lines[:] = [line for line in lines if not line.strip() or json.loads(line)["id"] not in arguments.ids]
    print(f"revoked {', '.join(arguments.ids)}")
    return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
