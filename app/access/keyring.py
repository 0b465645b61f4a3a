"""The keys that a process knows: looked up at every request, read anew when their file changes."""

from __future__ import annotations

import hmac
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from app.access.caller import MOST, Caller
from app.access.errors import unknown_caller
from app.access.key_file import Signature, read_records, signature
from app.access.quota import Allowance, QuotaLimits
from app.access.records import KeyRecord
from engine.errors import ConfigError

logger = logging.getLogger("spectra.access")

POLL_S = 1.0  # seconds between two looks at the file
LONGEST_KEY = 256  # bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One key, ready to be asked for."""

    digest: bytes
    caller: Caller
    limits: QuotaLimits
    expires: float  # seconds since 1970

    @classmethod
    def of(cls, record: KeyRecord) -> Entry:
        """From its record in the file."""
        caller = Caller(
            tenant=record.tenant,
            key_id=record.id,
            namespaces=frozenset(record.namespaces),
            feeds=frozenset(record.feeds),
            first_priority=record.max_priority,
            last_priority=MOST,
            methods=None if record.methods is None else frozenset(record.methods),
            max_nodes=record.max_nodes,
            is_admin=record.admin,
            limited_by=f"key {record.id} may not ask for it",
        )
        limits = QuotaLimits(record.requests_per_minute, record.tokens_per_minute, record.max_concurrent)
        expires = float("inf") if record.expires is None else record.expires.timestamp()
        return cls(bytes.fromhex(record.sha256), caller, limits, expires)


class Keyring:
    """The keys of a file.

    Only the file's keys have state here, so that callers cannot fill memory. What is left to a key outlives a reading
    of the file; keys that have gone from it are refused from then on, and their running requests end as they would.

    Args:
        replicas: processes that share the limits.
        wall: seconds since 1970, for expiry.
        clock: seconds, for rates.

    Raises:
        ConfigError: the file cannot be read, or a record is wrong.
    """

    def __init__(
        self,
        path: Path,
        replicas: int = 1,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._replicas = replicas
        self._wall = wall
        self._clock = clock
        self._seen: Signature | None = signature(path)
        self._entries = _table(read_records(path))
        self._allowances: dict[str, Allowance] = {}  # by the key's id
        self._allowed_by = self._entries  # the reading that the allowances belong to

    def find(self, key: bytes) -> tuple[Caller, Allowance]:
        """The caller that sends a key, and what is left to it.

        Raises:
            AccessError: 401, the key is unknown or has expired.
        """
        entries = self._entries
        digest = sha256(key).digest() if len(key) <= LONGEST_KEY else b""
        entry = entries.get(digest)
        if entry is None or not hmac.compare_digest(entry.digest, digest):
            raise unknown_caller("the key is not known to this server; it may have been revoked")
        if self._wall() >= entry.expires:
            raise unknown_caller(f"key {entry.caller.key_id} has expired")
        if entries is not self._allowed_by:
            known = {one.caller.key_id for one in entries.values()}
            self._allowances = {name: left for name, left in self._allowances.items() if name in known}
            self._allowed_by = entries
        allowance = self._allowances.get(entry.caller.key_id)
        if allowance is None:
            allowance = self._allowances[entry.caller.key_id] = Allowance(entry.limits, self._replicas, self._clock)
        elif allowance.limits != entry.limits:
            allowance.change(entry.limits)
        return entry.caller, allowance

    def refresh(self) -> None:
        """Read the file if it has changed; one that cannot be read, or is wrong, leaves the last good keys in force."""
        now = signature(self._path)
        if now == self._seen:
            return
        self._seen = now
        try:
            entries = _table(read_records(self._path))
        except ConfigError as error:
            logger.error("the keys stay as they were: %s", error)
            return
        self._entries = entries
        logger.info("%s has %d keys now", self._path, len(entries))

    def follow(self) -> None:
        """Refresh in a thread for as long as the process lives."""
        threading.Thread(target=self._poll, name="keys", daemon=True).start()

    def _poll(self) -> None:
        while True:
            time.sleep(POLL_S)
            self.refresh()


def _table(records: list[KeyRecord]) -> dict[bytes, Entry]:
    return {entry.digest: entry for entry in map(Entry.of, records)}
