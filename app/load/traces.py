"""Reads traces of requests: when each arrived, the lengths of its prompt and answer, and the prefixes it shares.

A file has one of two forms: Mooncake's lines of JSON, if it begins with a brace, or BurstGPT's CSV.
"""

from __future__ import annotations

import csv
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from pathlib import Path
from typing import Annotated

import msgspec

from engine.errors import ConfigError

BLOCK_TOKENS = 512  # of a prompt that one of Mooncake's hash_ids stands for
MOST_REQUESTS = 100_000
MOST_TOKENS = 1 << 20  # of a prompt or an answer
SHOWN_CHARS = 60
MOONCAKE, BURSTGPT = "Mooncake", "BurstGPT"
EXPECTED_FORM = {
    MOONCAKE: f'a line is {{"timestamp": milliseconds, "input_length": 1 to {MOST_TOKENS}, "output_length": 0 to '
    f'{MOST_TOKENS}, "hash_ids": [one integer for {BLOCK_TOKENS} tokens]}}',
    BURSTGPT: f"a row has Timestamp (seconds), Request tokens (1 to {MOST_TOKENS}) and Response tokens (0 to "
    f"{MOST_TOKENS}), under a header with these names",
}

Timestamp = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
PromptTokens = Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
AnswerTokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
HashId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class TracedRequest(msgspec.Struct):
    """A request of a trace, with the names of Mooncake's form."""

    ms: Timestamp = msgspec.field(name="timestamp")  # of the trace's clock
    input_tokens: PromptTokens = msgspec.field(name="input_length")
    output_tokens: AnswerTokens = msgspec.field(name="output_length")  # 0: the recorded server failed
    # Prompts that share leading ids share so many blocks of text.
    blocks: list[HashId] = msgspec.field(name="hash_ids", default_factory=list)


class BurstRow(msgspec.Struct):
    """A row of a trace in BurstGPT's form; its other columns are not read."""

    seconds: Timestamp = msgspec.field(name="Timestamp")
    input_tokens: PromptTokens = msgspec.field(name="Request tokens")
    output_tokens: AnswerTokens = msgspec.field(name="Response tokens")


@dataclass(frozen=True)
class RequestTrace:
    """The requests to replay, in the order in which they arrived."""

    file: str
    form: str  # ``MOONCAKE`` or ``BURSTGPT``
    speed: float  # seconds of the trace in a second of the replay
    requests: Sequence[TracedRequest]
    offsets: Sequence[float]  # seconds of the replay, from the first arrival to each
    input_tokens: int
    output_tokens: int
    left_out: int  # requests without an answer, which the recorded server failed


def read_trace(path: Path, limit: int | None = None, speed: float = 1.0, duration: float | None = None) -> RequestTrace:
    """Return the first ``limit`` answered requests of a trace, without those after ``duration`` seconds of the replay.

    Raises:
        ConfigError: the file cannot be read or has a wrong line, no request, or more than ``MOST_REQUESTS``.
    """
    if limit is not None and limit > MOST_REQUESTS:
        raise ConfigError(f"--requests is {limit}; it must be at most {MOST_REQUESTS} with --trace")
    kept: list[TracedRequest] = []
    left_out = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            form, read = (MOONCAKE, read_mooncake) if first.startswith("{") else (BURSTGPT, read_burstgpt)
            for request in read(chain([first], file), f"--trace {path}"):
                if request.output_tokens == 0:
                    left_out += 1
                    continue
                if len(kept) == MOST_REQUESTS:
                    raise ConfigError(f"--trace {path} has more than {MOST_REQUESTS} requests; give --requests")
                kept.append(request)
                if len(kept) == limit:
                    break
    except OSError as error:
        raise ConfigError(f"--trace {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--trace {path} is no text in UTF-8: {error}") from error
    if not kept:
        raise ConfigError(f"--trace {path} has no request with an answer: {EXPECTED_FORM[form]}")
    kept.sort(key=lambda request: request.ms)
    offsets = [(request.ms - kept[0].ms) / 1e3 / speed for request in kept]
    end = bisect_left(offsets, inf if duration is None else duration)
    sent = kept[:end]
    tokens = sum(request.input_tokens for request in sent), sum(request.output_tokens for request in sent)
    return RequestTrace(str(path), form, speed, sent, offsets[:end], *tokens, left_out)


def read_mooncake(lines: Iterable[str], where: str) -> Iterator[TracedRequest]:
    for n, line in enumerate(lines, 1):
        try:
            if line.strip():
                yield msgspec.json.decode(line, type=TracedRequest)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{where}, line {n}: {error}; {EXPECTED_FORM[MOONCAKE]}") from error


def read_burstgpt(lines: Iterable[str], where: str) -> Iterator[TracedRequest]:
    rows = csv.DictReader(lines)
    try:
        names = rows.fieldnames or ()
        if not {field.encode_name for field in msgspec.structs.fields(BurstRow)} <= {*names}:
            begins = repr(",".join(names)[:SHOWN_CHARS]) if names else "an empty line"
            raise ConfigError(f"{where}, line 1: {begins} begins neither form; {'; or '.join(EXPECTED_FORM.values())}")
        for values in rows:
            row = msgspec.convert(values, BurstRow, strict=False)
            yield TracedRequest(row.seconds * 1e3, row.input_tokens, row.output_tokens)
    except (csv.Error, msgspec.ValidationError) as error:
        raise ConfigError(f"{where}, line {rows.reader.line_num}: {error}; {EXPECTED_FORM[BURSTGPT]}") from error
