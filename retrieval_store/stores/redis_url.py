"""Reads the address of a Redis from a URL and the environment; never shows a password.

``redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]``, ``redis+sentinel://HOST[:PORT],.../SERVICE[/DB]`` and
``redis+cluster://HOST[:PORT],...``; ``rediss`` for TLS, with ``?ca=FILE``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote

from retrieval_store.errors import StoreAddressError

USERNAME = "SPECTRA_REDIS_USERNAME"
PASSWORD = "SPECTRA_REDIS_PASSWORD"
SENTINEL_USERNAME = "SPECTRA_REDIS_SENTINEL_USERNAME"
SENTINEL_PASSWORD = "SPECTRA_REDIS_SENTINEL_PASSWORD"
CREDENTIALS = (USERNAME, PASSWORD, SENTINEL_USERNAME, SENTINEL_PASSWORD)
FORMS = {
    "": "redis[s]://[USER@]HOST[:PORT][/DB]",
    "sentinel": "redis[s]+sentinel://[USER@]HOST[:PORT][,HOST[:PORT]..]/SERVICE[/DB]",
    "cluster": "redis[s]+cluster://[USER@]HOST[:PORT][,HOST[:PORT]..]",
}
_PORTS = {"": 6379, "sentinel": 26379, "cluster": 6379}
_URL = re.compile(
    r"(?P<scheme>rediss?)(\+(?P<kind>\w+))?://((?P<user>[^/?#]*)@)?(?P<hosts>[^/?#@]*)(?P<path>[^?#@]*)(\?(?P<query>.*))?"
)
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:@\s]+)(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Hosts, database and credentials."""

    kind: str  # a key of FORMS
    tls: bool
    hosts: tuple[tuple[str, int], ...]
    db: int = 0
    service: str = ""  # Sentinel's name of the primary
    ca_file: str = ""  # "": none was named
    username: str = ""
    password: str = field(default="", repr=False)
    sentinel_username: str = ""
    sentinel_password: str = field(default="", repr=False)

    @property
    def shown(self) -> str:
        """The URL without a password."""
        scheme = ("rediss" if self.tls else "redis") + (f"+{self.kind}" if self.kind else "")
        user = f"{quote(self.username, safe='')}@" if self.username else ""
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        path = {"": f"/{self.db}", "sentinel": f"/{self.service}/{self.db}", "cluster": ""}[self.kind]
        return f"{scheme}://{user}{hosts}{path}" + (f"?ca={quote(self.ca_file)}" if self.ca_file else "")


def parse_redis_url(url: str, environment: Mapping[str, str]) -> RedisAddress:
    """Return the address in ``url``, or raise StoreAddressError; ``environment`` may have the user and the password."""
    parts = _URL.fullmatch(url)
    kind = (parts["kind"] or "") if parts else ""
    if parts is None or kind not in FORMS:
        raise StoreAddressError(f"{safe(url)} is not the URL of a Redis; the forms are {', '.join(FORMS.values())}")
    service, db = _path(url, kind, parts["path"])
    username, _, password = (unquote(part) for part in (parts["user"] or "").partition(":"))
    return RedisAddress(
        kind=kind,
        tls=parts["scheme"] == "rediss",
        hosts=_hosts(url, kind, parts["hosts"]),
        db=db,
        service=service,
        ca_file=_ca_file(url, parts["scheme"] == "rediss", parts["query"] or ""),
        username=username or environment.get(USERNAME, ""),
        password=password or environment.get(PASSWORD, ""),
        sentinel_username=environment.get(SENTINEL_USERNAME, ""),
        sentinel_password=environment.get(SENTINEL_PASSWORD, ""),
    )


def safe(url: str) -> str:
    """Return ``url`` without user, password and options, even if it is malformed: for messages."""
    scheme, found, rest = url.partition("://")
    if not found:
        return "the address"
    rest = rest.rpartition("@")[2].partition("?")[0]
    return f"{scheme}://{re.sub(r':(?![0-9]{1,5}(?:[,/]|$))[^,]*', ':***', rest)}"


def _wrong(url: str, kind: str, what: str) -> StoreAddressError:
    return StoreAddressError(f"{safe(url)}: {what}; the form is {FORMS[kind]}")


def _hosts(url: str, kind: str, text: str) -> tuple[tuple[str, int], ...]:
    hosts = []
    for part in text.split(","):
        found = _HOST.fullmatch(part)
        port = int(found[2] or _PORTS[kind]) if found else 0
        if found is None or not 0 < port < 65536:
            raise _wrong(url, kind, "a host or port is missing or wrong")
        hosts.append((found[1], port))
    if kind == "" and len(hosts) > 1:
        raise _wrong(url, kind, f"it names {len(hosts)} hosts, but only one is allowed")
    return tuple(hosts)


def _path(url: str, kind: str, text: str) -> tuple[str, int]:
    parts = [unquote(part) for part in text.strip("/").split("/")] if text.strip("/") else []
    service = parts.pop(0) if kind == "sentinel" and parts else ""
    if kind == "sentinel" and not service:
        raise _wrong(url, kind, "the name of Sentinel's service is missing")
    number = parts.pop(0) if parts else "0"
    if parts or not re.fullmatch(r"[0-9]{1,5}", number):
        raise _wrong(url, kind, "the database must be one number")
    if kind == "cluster" and int(number) != 0:
        raise _wrong(url, kind, "a Cluster has database 0 only")
    return service, int(number)


def _ca_file(url: str, tls: bool, query: str) -> str:
    options = dict(parse_qsl(query, keep_blank_values=True))
    ca_file = options.pop("ca", "")
    if options:
        raise StoreAddressError(f"{safe(url)}: the only option of a URL is ?ca=FILE, not {', '.join(sorted(options))}")
    if ca_file and not tls:
        raise StoreAddressError(f"{safe(url)}: ?ca={ca_file} needs rediss://, which is TLS")
    return ca_file
