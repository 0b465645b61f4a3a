"""Reads traces of requests: when each arrived, the lengths of its prompt and answer, and the prefixes it shares.

Two forms are told apart by the first character of the file: Mooncake's lines of JSON, and BurstGPT's CSV.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TextIO

import msgspec

from engine.errors import ConfigError

BLOCK_TOKENS = 512  # of a prompt that one of Mooncake's hash_ids stands for
MOST_REQUESTS = 100_000
SHOWN_CHARS = 60
MOST_TOKENS = 1 << 20  # of a prompt or an answer
MOONCAKE, BURSTGPT = "Mooncake", "BurstGPT"
RIGHT = {
    MOONCAKE: f'a line is {{"timestamp": milliseconds, "input_length": 1 to {MOST_TOKENS}, "output_length": 0 to '
    f'{MOST_TOKENS}, "hash_ids": [one integer for {BLOCK_TOKENS} tokens]}}',
    BURSTGPT: f"a row has Timestamp (seconds), Request tokens (1 to {MOST_TOKENS}) and Response tokens (0 to "
    f"{MOST_TOKENS}), under a header with these names",
}

Timestamp = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
PromptTokens = Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
AnswerTokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
HashId = Annotated[int, msgspec.Meta(ge=0)]


class MooncakeRow(msgspec.Struct):
    """A line of a trace in Mooncake's form."""

    timestamp: Timestamp
    input_length: PromptTokens
    output_length: AnswerTokens
    hash_ids: list[HashId] = []


class BurstRow(msgspec.Struct):
    """A row of a trace in BurstGPT's form; its other columns are not read."""

    timestamp: Timestamp = msgspec.field(name="Timestamp")
    request_tokens: PromptTokens = msgspec.field(name="Request tokens")
    response_tokens: AnswerTokens = msgspec.field(name="Response tokens")


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """A request of a trace."""

    at: float  # seconds of the trace's clock
    input_tokens: int
    output_tokens: int  # 0: the recorded server failed
    blocks: Sequence[int] = ()  # prompts that share leading ids share so many blocks of text


@dataclass(frozen=True)
class RequestTrace:
    """The requests to replay, in the order in which they arrived."""

    file: str
    form: str  # ``MOONCAKE`` or ``BURSTGPT``
    requests: Sequence[TracedRequest]
    left_out: int  # requests without an answer, which the recorded server failed
    speed: float = 1.0  # seconds of the trace in a second of the replay

    @property
    def offsets(self) -> Iterator[float]:
        """Arrivals, in seconds after the first."""
        return ((request.at - self.requests[0].at) / self.speed for request in self.requests)

    @property
    def input_tokens(self) -> int:
        return sum(request.input_tokens for request in self.requests)

    @property
    def output_tokens(self) -> int:
        return sum(request.output_tokens for request in self.requests)

    @property
    def totals(self) -> list[list[str]]:
        """Rows of a report."""
        return [
            ["prompt / output tokens of the trace", f"{self.input_tokens} / {self.output_tokens}"],
            ["requests of the trace left out, as they have no answer", str(self.left_out)],
        ]

    @property
    def settings(self) -> dict[str, Any]:
        """All but the requests, for the document of a run."""
        names = ("file", "form", "speed", "left_out", "input_tokens", "output_tokens")
        return {name: getattr(self, name) for name in names}


def read_trace(path: Path, limit: int | None = None, speed: float = 1.0) -> RequestTrace:
    """Return the first ``limit`` answered requests of a trace (None: all of them).

    Raises:
        ConfigError: the file cannot be read or has a wrong line, no request, or more than ``MOST_REQUESTS``.
    """
    if limit is not None and limit > MOST_REQUESTS:
        raise ConfigError(f"--requests is {limit}; it must be at most {MOST_REQUESTS} with --trace")
    kept: list[TracedRequest] = []
    left_out = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            form, requests = _requests(file, path)
            for request in requests:
                if request.output_tokens == 0:
                    left_out += 1
                elif len(kept) < (limit or MOST_REQUESTS):
                    kept.append(request)
                elif limit is None:
                    raise ConfigError(f"--trace {path} has more than {MOST_REQUESTS} requests; give --requests")
                else:
                    break
    except OSError as error:
        raise ConfigError(f"--trace {path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"--trace {path} is no text in UTF-8: {error}") from error
    if not kept:
        raise ConfigError(f"--trace {path} has no request with an answer: {RIGHT[form]}")
    return RequestTrace(str(path), form, sorted(kept, key=lambda one: one.at), left_out, speed)


def _requests(file: TextIO, path: Path) -> tuple[str, Iterator[TracedRequest]]:
    """Return the form of a trace, and its requests in the order of the lines."""
    first = file.readline()
    lines = chain([first], file)
    if first.startswith("{"):
        numbered = ((n, line) for n, line in enumerate(lines, 1) if line.strip())
        return MOONCAKE, (_mooncake(line, f"--trace {path}, line {n}") for n, line in numbered)
    rows = csv.DictReader(lines)
    if not {field.encode_name for field in msgspec.structs.fields(BurstRow)} <= {*(rows.fieldnames or ())}:
        named = f"--trace {path}, line 1: {first.strip()[:SHOWN_CHARS]!r} begins neither form"
        raise ConfigError(f"{named}; {RIGHT[MOONCAKE]}; or {RIGHT[BURSTGPT]}")
    return BURSTGPT, (_burst(row, f"--trace {path}, line {rows.line_num}") for row in rows)


def _mooncake(line: str, where: str) -> TracedRequest:
    try:
        row = msgspec.json.decode(line, type=MooncakeRow)
        most = -(-row.input_length // BLOCK_TOKENS)
        if len(row.hash_ids) > most:
            has = f"{len(row.hash_ids)} hash_ids for {row.input_length} tokens, which are {most} blocks"
            raise ConfigError(f"{where}: has {has}; {RIGHT[MOONCAKE]}")
        return TracedRequest(row.timestamp / 1e3, row.input_length, row.output_length, array("q", row.hash_ids))
    except (msgspec.DecodeError, OverflowError) as error:
        raise ConfigError(f"{where}: {error}; {RIGHT[MOONCAKE]}") from error


def _burst(row: dict[str, str], where: str) -> TracedRequest:
    try:
        read = msgspec.convert(row, BurstRow, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}; {RIGHT[BURSTGPT]}") from error
    return TracedRequest(read.timestamp, read.request_tokens, read.response_tokens)
