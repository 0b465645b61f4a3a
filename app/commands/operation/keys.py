"""``spectra keys``: adds, lists and revokes the keys of a file that ``spectra serve --api-keys`` reads."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from app.access.key_file import KeyRecord, changing, digest_of, new_key, parse_record, parse_records, read_records
from app.reporting.report import columns
from engine.errors import ConfigError

DESCRIPTION = """\
Manage the keys of `spectra serve --api-keys FILE`. Each line of the file holds the permissions of one key and its
SHA-256, never the key. A command replaces the file atomically; servers read it again within about a second.

  spectra keys new --file keys.jsonl --tenant acme --namespaces acme --feeds acme --requests-per-minute 600
  spectra keys list --file keys.jsonl
  spectra keys revoke --file keys.jsonl ID
"""
NEW = """\
Add a key and print it once: it cannot be shown again. Clients send it as `Authorization: Bearer KEY`; with OpenAI's
clients it is the api_key. Without a flag, namespaces, feeds and admin are not permitted; methods, nodes, rates and
expiry are not limited.
"""
LIST = "Print what each key may do, without the keys."
REVOKE = "Remove keys from the file. Servers refuse them from then on, and finish their running requests."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="keys_command", required=True, metavar="COMMAND")
    new = commands.add_parser("new", help="add a key and print it once", description=NEW)
    _add_new(new)
    new.set_defaults(run=_new)
    listed = commands.add_parser("list", help="print what each key may do, without the keys", description=LIST)
    listed.add_argument("--json", action="store_true", help="the records as JSON lines")
    listed.set_defaults(run=_list)
    revoke = commands.add_parser("revoke", help="remove keys from the file", description=REVOKE)
    revoke.add_argument("ids", nargs="+", metavar="ID", help="of a key, as `spectra keys list` shows it")
    revoke.set_defaults(run=_revoke)
    for command in (new, listed, revoke):
        command.add_argument("--file", type=Path, required=True, metavar="FILE", help="the file of keys (JSON lines)")


def _add_new(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tenant", required=True, metavar="NAME", help="owner of the key; tenants take turns and share nothing")
    add("--id", metavar="ID", help="name of the key in logs and lists (default: the tenant and a number)")
    add("--namespaces", type=_names, default=(), metavar="A,B", help="whose texts its requests may be drafted from")
    add("--feeds", type=_names, default=(), metavar="A,B", help="namespaces that may learn from its answers")
    add("--max-priority", type=int, default=0, metavar="N", help="lowest number, served first, it may ask (default: 0)")
    add("--methods", type=_names, metavar="A,B", help="speculation methods that requests may name (default: all)")
    add("--max-nodes", type=int, metavar="N", help="most drafted nodes per step of a request")
    add("--requests-per-minute", type=int, metavar="N", help="most requests a minute")
    tokens = "most prompt and answer tokens a minute; a request reserves its max_tokens until it ends"
    add("--tokens-per-minute", type=int, metavar="N", help=tokens)
    add("--max-concurrent", type=int, metavar="N", help="most requests running at once")
    add("--days", type=float, metavar="N", help="days until it expires (default: never)")
    add("--admin", action="store_true", help="it may also read /metrics and /operator, and see drafts")


def _new(arguments: argparse.Namespace) -> int:
    key = new_key()
    with changing(arguments.file) as lines:
        taken = {record.id for record in parse_records(b"\n".join(lines), str(arguments.file))}
        name = arguments.id or _free_id(arguments.tenant, taken)
        if name in taken:
            raise ConfigError(f"--id {name} is taken; `spectra keys list` shows the existing keys")
        given = {field: value for field, value in vars(arguments).items() if field in KeyRecord.model_fields}
        given |= {"id": name, "sha256": digest_of(key), "expires": _expiry(arguments.days)}
        record = parse_record(json.dumps(given).encode(), "the new key")
        lines.append(record.model_dump_json(exclude_defaults=True).encode())
    print(f"Key {name} of tenant {arguments.tenant}, shown only once:", file=sys.stderr, flush=True)
    print(key)
    return 0


def _expiry(days: float | None) -> str | None:
    if days is None:
        return None
    try:
        return (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")
    except (OverflowError, ValueError):
        raise ConfigError(f"--days is {days:g}; the key must expire before the year 10000") from None


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
    return "; ".join(parts) or "send requests, without limits"


def _revoke(arguments: argparse.Namespace) -> int:
    with changing(arguments.file) as lines:
        ids = {record.id for record in parse_records(b"\n".join(lines), str(arguments.file))}
        if unknown := [name for name in arguments.ids if name not in ids]:
            raise ConfigError(f"there is no key {unknown[0]} in {arguments.file}; `spectra keys list` shows all keys")
        lines[:] = [line for line in lines if not line.strip() or json.loads(line)["id"] not in arguments.ids]
    print(f"revoked {', '.join(arguments.ids)}")
    return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
