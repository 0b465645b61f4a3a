"""``spectra load --trace`` with a real server: prompts have the trace's lengths and shared prefixes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from app.load import traces
from app.load.traces import BURSTGPT, MOONCAKE, TracedRequest, read_trace
from engine.errors import ConfigError
from tests.app.conftest import ScriptedBackend
from tests.app.load.conftest import Script
from tests.support.spectra_command import run_cli

HEADER = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST = HEADER + "5,s,1.5,GPT-4,40,9,49,API log\n6,s,1,GPT-4,40,0,40,API log\n5.5,,,ChatGPT,30,3,33,Conversation log\n"


def written(folder: Path, *lines: dict[str, object] | str) -> Path:
    path = folder / "trace"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def line(at: float, n_input: int, n_output: int, *ids: int) -> dict[str, object]:
    return {"timestamp": at, "input_length": n_input, "output_length": n_output, "hash_ids": list(ids)}


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_trace_sets_arrivals_lengths_and_shared_prefixes(
    server: str, backend: ScriptedBackend, tmp_path: Path, endpoint: str
) -> None:
    backend.model_card = msgspec.structs.replace(backend.model_card, max_model_len=4096)
    trace = written(tmp_path, line(7000, 1100, 9, 1, 2, 3), line(7100, 1200, 1, 1, 2, 4), line(8000, 600, 2, 5, 2))
    flags = ("--trace", trace, "--trace-speed", 10, "--endpoint", endpoint)
    ran = run_cli("load", "--url", server, *flags)
    assert ran.status == 0, ran.err
    found = ran.document
    assert (found["output_tokens"], found["settings"]["trace"]["input_tokens"]) == (12, 2900)
    assert found["prompt_tokens"] == pytest.approx(2900, abs=6)
    assert found["seconds"] > 0.1, "the arrivals span a second of the trace at ten times its speed"
    assert found["lateness"]["n"] == 3
    last, first, second = sorted((request.prompt for request in backend.seen), key=len)
    assert shared(first, second) == pytest.approx(1024, abs=36), "two blocks of 512 tokens and a template"
    assert shared(first, last) < 64, "a later block in common is no prefix in common"


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    return next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)


def test_burstgpts_rows_are_sorted_and_failures_are_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, BURST)
    trace = read_trace(path, speed=2.0)
    assert trace.requests == [TracedRequest(5000, 40, 9), TracedRequest(5500, 30, 3)]
    assert (trace.form, trace.left_out, trace.offsets) == (BURSTGPT, 1, [0.0, 0.25])
    short = read_trace(path, speed=2.0, duration=0.25)
    assert (len(short.requests), short.offsets, short.input_tokens, short.output_tokens) == (1, [0.0], 40, 9)


def test_a_long_trace_needs_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MOST_REQUESTS", 2)
    path = written(tmp_path, *(line(i, 5, 5) for i in range(3)))
    with pytest.raises(ConfigError, match="has more than 2 requests; give --requests"):
        read_trace(path)
    limited = read_trace(path, 2)
    assert (limited.form, len(limited.requests)) == (MOONCAKE, 2)
    with pytest.raises(ConfigError, match="--requests is 3; it must be at most 2"):
        read_trace(path, 3)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([line(1, 5, 5), line(2, 0, 5)], r"trace, line 2: Expected `int` >= 1 - at `\$.input_length`; a line is"),
        ([line(1, 600, 5, 2**64)], "line 1: .*; a line is"),
        ([HEADER + "x,,,GPT-4,40,9,49,API log"], r"line 2: Expected `float`.*`\$.Timestamp`; a row has Timestamp"),
        ([HEADER + "nan,,,GPT-4,40,9,49,API log"], "line 2: .*; a row has Timestamp"),
        ([HEADER + "1,,,GPT-4"], "line 2: .*; a row has Timestamp"),
        (["Timestamp,Model"], "line 1: 'Timestamp,Model' begins neither form; a line is .*; or a row has"),
        ([HEADER + "1,,,GPT-4," + 140_000 * "9"], "line 2: field larger than field limit .*; a row has Timestamp"),
        (["", HEADER], "line 1: an empty line begins neither form"),
        ([line(1, 5, 0)], "has no request with an answer"),
    ],
)
def test_a_wrong_line_is_named_with_what_would_be_right(
    tmp_path: Path, lines: list[dict[str, object] | str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_trace(written(tmp_path, *lines))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--trace-speed", 2], "--trace-speed 2 is for a trace: give --trace as well"),
        (["--trace", "TRACE", "--max-tokens", 9], "--max-tokens goes without --trace"),
        (
            ["--trace", "TRACE", "--arrivals", "fixed"],
            "--arrivals goes without --trace, which sets requests and arrivals",
        ),
        (["--trace", "TRACE", "--warmup", 1], "--warmup goes without --trace"),
        (["--trace", "/none"], "--trace /none cannot be read: No such file"),
        (["--trace", "TRACE"], "--url: POST http://"),
    ],
)
def test_a_flag_that_does_not_fit_a_trace_is_refused(
    script: Script, tmp_path: Path, flags: list[object], message: str
) -> None:
    trace = written(tmp_path, line(1, 5, 5))
    script.default = (404, {}, [b"{}"])
    ran = run_cli("load", "--url", script.url, *(trace if flag == "TRACE" else flag for flag in flags))
    assert (ran.status, ran.err.startswith(f"spectra: {message}")) == (2, True), ran.err
