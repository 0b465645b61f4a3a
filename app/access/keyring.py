"""The keys that a process knows: looked up at every request, read again when their file changes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from app.access.caller import MOST, Caller, unknown_caller
from app.access.key_file import KeyRecord, Signature, read_records, signature
from app.access.quota import Allowance, QuotaLimits
from engine.errors import ConfigError

logger = logging.getLogger("spectra.access")

POLL_S = 1.0  # seconds between two looks at the file
LONGEST_KEY = 256  # bytes


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One key of the file."""

    caller: Caller
    limits: QuotaLimits
    expires: float  # seconds since 1970
    allowance: Allowance  # the same after every reading of the file, until the key is gone from it


class Keyring:
    """The keys of a file.

    Keys that are removed from the file are refused from then on, and their running requests continue to their end.

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
        self._entries: dict[bytes, KeyEntry] = {}  # by the key's SHA-256
        self._entries = self._read()

    def find(self, key: bytes) -> tuple[Caller, Allowance]:
        """The caller that sends a key, and what it may still use.

        Raises:
            StatusError: 401, the key is unknown or has expired.
        """
        entry = self._entries.get(sha256(key).digest()) if len(key) <= LONGEST_KEY else None
        if entry is None:
            raise unknown_caller("the key is not known to this server; it may have been revoked")
        if self._wall() >= entry.expires:
            raise unknown_caller(f"key {entry.caller.key_id} has expired")
        if entry.allowance.limits != entry.limits:
            entry.allowance.change(entry.limits)
        return entry.caller, entry.allowance

    def refresh(self) -> None:
        """Read the file if it has changed; an unreadable or wrong file leaves the last good keys in force."""
        now = signature(self._path)
        if now == self._seen:
            return
        self._seen = now
        try:
            self._entries = self._read()
        except ConfigError as error:
            logger.error("the keys stay as they were: %s", error)
            return
        logger.info("%s has %d keys now", self._path, len(self._entries))

    def follow(self) -> None:
        """Refresh in a thread for as long as the process lives."""
        threading.Thread(target=self._poll, name="keys", daemon=True).start()

    def _poll(self) -> None:
        while True:
            time.sleep(POLL_S)
            self.refresh()

    def _read(self) -> dict[bytes, KeyEntry]:
        kept = {entry.caller.key_id: entry.allowance for entry in self._entries.values()}
        return {bytes.fromhex(one.sha256): self._entry(one, kept) for one in read_records(self._path)}

    def _entry(self, record: KeyRecord, kept: dict[str, Allowance]) -> KeyEntry:
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
        return KeyEntry(caller, limits, expires, kept.get(record.id) or Allowance(limits, self._replicas, self._clock))
