"""The records of a run: one per method, repeat and turn, kept as JSON lines.

Tables, plots and the JSON document are made from records alone. Runs of a model have times, replays have none.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from engine.errors import ConfigError
from engine.events import RequestStats, SourceCounts
from engine.scheduling.drafting import AUTOREGRESSIVE

Kind = TypeVar("Kind", bound=msgspec.Struct)
COLD, WARM = "cold", "warm"  # states of speculators, as `--state` and the document name them
COUNTS = SourceCounts._fields
"""Counts of tokens per source, in the order of ``RequestStats.by_source``."""


class BenchSetting(NamedTuple):
    """The conditions of a comparison: figures of different settings never mix."""

    temperature: float = 0.0
    warm: bool = False

    @property
    def state(self) -> str:
        """``COLD`` or ``WARM``."""
        return WARM if self.warm else COLD

    @property
    def label(self) -> str:
        """Such as ``greedy, cold``."""
        decoding = "greedy" if self.temperature == 0 else f"temperature {self.temperature:g}"
        return f"{decoding}, {self.state}"


class Key(NamedTuple):
    """Identifies a record."""

    setting: BenchSetting
    method: str
    repeat: int
    question: int  # its index
    turn: int


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one method did on one turn of one question.

    The lists have one entry per decode step, the prefill left out: ``step_tokens`` sum to ``len(token_ids) - 1``.
    A record without times (a replay) leaves ``step_seconds``, ``target_seconds`` and ``seconds`` at their defaults.
    """

    method: str
    index: int  # of the question among those asked
    prompt_tokens: int
    token_ids: list[int]  # a terminating EOS included
    step_tokens: list[int]  # committed by each step, bonus token included; at least 1 each
    temperature: float = 0.0
    warm: bool = False  # speculator state kept across prompts
    repeat: int = 0
    turn: int = 0
    question_id: int | str = ""
    category: str = ""
    finish_reason: str = ""
    step_nodes: list[int] = []  # rows each step scored beyond one per sequence: drafted nodes, probes included
    step_seconds: list[float] = []  # whole steps, drafting included
    target_seconds: list[float] = []  # the target's part of them
    seconds: float = 0.0  # from prompt to last token; a batch's steps are shared evenly by the sequences in them
    by_source: dict[str, dict[str, int]] = {}  # speculator -> name in COUNTS -> nodes
    failures: int = 0  # exceptions of the method; it drafts nothing more for a request after one

    @property
    def setting(self) -> BenchSetting:
        """The conditions it was measured under."""
        return BenchSetting(self.temperature, self.warm)

    @property
    def key(self) -> Key:
        """Identifies the record."""
        return Key(self.setting, self.method, self.repeat, self.index, self.turn)

    @property
    def is_reference(self) -> bool:
        """Whether other methods are compared with it."""
        return self.method == AUTOREGRESSIVE


def source_counts(stats: RequestStats) -> dict[str, dict[str, int]]:
    """Drafted and accepted tokens of a request by source, as a record keeps them."""
    return {name: counts.named for name, counts in stats.by_source.items()}


def digest(raw: bytes) -> str:
    """A short hash of what a run read, for its settings."""
    return hashlib.sha256(raw).hexdigest()[:12]


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A short hash of settings."""
    return hashlib.sha256(msgspec.json.encode(dict(settings), order="deterministic")).hexdigest()[:16]


class _Header(msgspec.Struct, frozen=True):
    """First line of a record file."""

    fingerprint: str
    settings: dict[str, Any]


class RecordFile:
    """Records on disk, to which one process at a time appends.

    Every record is on disk when ``append`` returns, so a killed run loses at most the record it was writing.

    Args:
        path: of the JSON-lines file; made with its folder if missing. Its first line holds the settings.
        settings: everything that decides the content of records.
        restart: forget the records in the file.

    Raises:
        ConfigError: the file holds records of other settings (the message names them), is in use, or is no record file.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], restart: bool = False) -> None:
        self.path = path
        self._header = _Header(fingerprint(settings), msgspec.to_builtins(dict(settings)))
        self._records: dict[Key, TurnRecord] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise ConfigError(f"--out {path.parent}: {error.strerror}") from error
        try:
            self._lock()
            if restart:
                self._file.truncate(0)
            self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    @property
    def records(self) -> list[TurnRecord]:
        """All records so far; of two with the same key, the later one."""
        return list(self._records.values())

    def __contains__(self, key: Key) -> bool:
        """Whether the file holds a record with this key."""
        return key in self._records

    def append(self, record: TurnRecord) -> None:
        """Write a record to disk."""
        self._records[record.key] = record
        self._write(record)

    def forget(self, keys: Iterable[Key]) -> None:
        """Remove records from the file; a run that is killed meanwhile loses no other record."""
        if not [key for key in keys if self._records.pop(key, None) is not None]:
            return
        before, replacement = self._file, self.path.with_suffix(".new")
        with before:
            self._file = replacement.open("w+b")
            self._lock()
            self._write(self._header, *self._records.values())
            replacement.replace(self.path)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"--out {self.path.parent}: another bench is writing there") from error

    def _read(self) -> None:
        self._file.seek(0)
        raw = self._file.read()
        whole = raw[: raw.rfind(b"\n") + 1]  # a killed run may leave part of a line
        self._file.truncate(len(whole))
        lines = whole.split(b"\n")[:-1]
        if not lines:
            self._write(self._header)
            return
        self._check(self._decode(1, lines[0], _Header))
        for number, line in enumerate(lines[1:], start=2):
            record = self._decode(number, line, TurnRecord)
            self._records[record.key] = record

    def _decode(self, number: int, line: bytes, kind: type[Kind]) -> Kind:
        try:
            return msgspec.json.decode(line, type=kind)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{self.path}, line {number}: {error}; --restart discards the file") from error

    def _check(self, found: _Header) -> None:
        if found.fingerprint == self._header.fingerprint:
            return
        mine, theirs = self._header.settings, found.settings
        differ = [name for name in {**theirs, **mine} if mine.get(name) != theirs.get(name)]
        changes = "; ".join(f"{name}: {theirs.get(name)!r} there, {mine.get(name)!r} now" for name in differ)
        raise ConfigError(f"{self.path} holds records of other settings ({changes}): use --restart or another --out")

    def _write(self, *values: msgspec.Struct) -> None:
        self._file.write(msgspec.json.Encoder().encode_lines(values))
        self._file.flush()
        os.fsync(self._file.fileno())
