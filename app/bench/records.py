"""The records of a run: one per method, repeat and turn, kept as JSON lines.

Tables, plots and the JSON document are made from records alone. Runs of a model have times, replays have none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from app.reporting.record_file import RecordFile
from engine.events import SourceCounts
from engine.scheduling.drafting import AUTOREGRESSIVE

COLD, WARM = "cold", "warm"  # states of speculators, as `--state` and the document name them
COUNTS = SourceCounts._fields
"""Counts of tokens per source, in the order of ``RequestStats.by_source``."""


class BenchSetting(NamedTuple):
    """The conditions of a comparison: figures of different settings never mix."""

    temperature: float = 0.0
    warm: bool = False

    @property
    def state(self) -> str:
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
        return BenchSetting(self.temperature, self.warm)

    @property
    def key(self) -> Key:
        return Key(self.setting, self.method, self.repeat, self.index, self.turn)

    @property
    def is_reference(self) -> bool:
        """Whether other methods are compared with it."""
        return self.method == AUTOREGRESSIVE


def digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:12]


def fingerprint(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(dict(settings), order="deterministic")).hexdigest()[:16]


def open_records(path: Path, settings: Mapping[str, Any], restart: bool = False) -> RecordFile[TurnRecord]:
    """The records at ``path``, to which a run of the same settings adds."""
    return RecordFile(path, TurnRecord, settings, "use --restart or another --out", restart)
