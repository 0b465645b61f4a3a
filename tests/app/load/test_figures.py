"""Figures of a run, exact, from records with given times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.image
import msgspec
import pytest

from app.load.figures import figures, identity
from app.load.records import Break, RequestRecord
from app.load.report import plots, write_records
from app.load.settings import Slo, parse_slo
from engine.errors import ConfigError


def record(index: int = 0, **fields: Any) -> RequestRecord:
    """Intended for 10, sent at 10.5, text at 11, 11.5, 13; ended at 14; four tokens."""
    values = {"prompt": index, "seed": index, "intended": 10.0, "sent": 10.5, "ended": 14.0}
    values |= {"chunks": [11.0, 11.5, 13.0], "text": "abc", "outcome": "ok"}
    return RequestRecord(index, **(values | {"prompt_tokens": 7, "completion_tokens": 4} | fields))  # type: ignore[arg-type]


def test_latencies_count_from_the_intended_arrival() -> None:
    one = record()
    assert (one.ttft, one.e2e, one.lateness, one.tpot) == (1.0, 4.0, 0.5, 1.0)
    assert (one.gaps, one.tokens_per_chunk) == ([0.5, 1.5], 4 / 3)
    for fields in ({"completion_tokens": 1}, {"completion_tokens": None}, {"chunks": []}):
        assert record(**fields).tpot is None


def test_rates_span_the_first_arrival_to_the_last_end() -> None:
    found = figures([record(0), record(1, intended=12.0, ended=20.0), record(2, outcome="429", completion_tokens=None)])
    assert (found.seconds, found.requests, found.ok, found.failed) == (10.0, 3, 2, 1)
    assert (found.requests_per_s, found.output_tokens, found.output_tokens_per_s) == (0.2, 8, 0.8)
    assert found.errors == {"429": 1}
    assert not found.is_good
    empty = figures([], Slo(ttft=1.0))
    assert (empty.requests, empty.ttft, empty.requests_per_s, empty.goodput) == (0, None, 0.0, None)


def test_goodput_counts_requests_within_every_limit() -> None:
    records = [record(0), record(1, chunks=[12.5]), record(2, ended=15.0), record(3, outcome="timeout")]
    found = figures(records, Slo(ttft=1.0, e2e=4.0))
    assert (found.slo_met, found.goodput) == (1, 0.2)
    without_usage = figures([record(0), record(1, completion_tokens=None)], Slo(tpot=9.0))
    assert (without_usage.output_tokens, without_usage.output_tokens_per_s, without_usage.goodput) == (None, None, None)
    assert figures([record(completion_tokens=None)], Slo(ttft=9.0)).goodput == 0.25, "TTFT needs no usage"


def test_breaks_become_errors_retries_and_times_to_recovery() -> None:
    first, second = (
        Break("broken stream", "gone", 11.0, recovered=1.5),
        Break("no connection", "no", 11.5, recovered=1.0),
    )
    refused = [Break("429", "full", 10.6, 429, 2.0), Break("429", "full", 12.7, 429, 4.0)]
    found = figures([record(0, breaks=[first, second]), record(1, breaks=refused, outcome="429")])
    assert (found.retries, found.errors, found.unrecovered) == (3, {"429": 1}, 0)
    assert found.failed_attempts == {"broken stream": 1, "no connection": 1, "429": 2}
    assert found.recovery is not None
    assert (found.recovery.n, found.recovery.max) == (1, 1.5)
    assert found.retry_after is not None
    assert (found.retry_after.n, found.retry_after.max) == (2, 4.0)


def test_only_whole_answers_to_the_same_prompt_and_seed_are_compared() -> None:
    same = [record(0, prompt=1, seed=5), record(1, prompt=1, seed=5), record(2, prompt=1, seed=6, text="x")]
    found = identity([*same, record(3, prompt=2, seed=5, text="y")], is_greedy=False)
    assert (found.groups, found.compared, found.differing) == (1, 2, [])
    other = record(4, prompt=1, seed=5, text="abd")
    assert not figures([*same, other]).is_good
    assert "from character 2 on 'c' and 'd'" in identity([*same, other], is_greedy=False).differing[0]
    greedy = identity([record(0, prompt=1), record(1, prompt=1, text="abcd")], is_greedy=True)
    assert (greedy.groups, len(greedy.differing)) == (1, 1), "greedy answers do not depend on the seed"
    unseeded = [record(i, prompt=1, seed=None, text=str(i)) for i in range(2)]
    broken = [record(i, prompt=1, seed=5, text=str(i), outcome="timeout") for i in range(2)]
    assert identity([*unseeded, *broken], is_greedy=False).groups == 0


def test_plots_are_drawn_and_records_written_with_times_from_the_first_arrival(tmp_path: Path) -> None:
    failed = record(1, outcome="429", breaks=[Break("429", "full", 12.0)], chunks=[])
    drawn = plots([record(0), failed], tmp_path, Slo(ttft=0.5))
    assert [path.name for path in drawn] == ["latency.png", "timeline.png"]
    assert all(matplotlib.image.imread(path).std() > 0.01 for path in drawn)
    assert [path.name for path in plots([failed], tmp_path)] == ["timeline.png"]
    assert plots([], tmp_path) == []
    write_records([record(0), failed], tmp_path / "r.jsonl")
    lines = [msgspec.json.decode(line) for line in (tmp_path / "r.jsonl").read_bytes().splitlines()]
    assert lines[0]["chunks"] == [1.0, 1.5, 3.0]
    assert (lines[1]["sent"], lines[1]["ended"], lines[1]["breaks"][0]["at"]) == (0.5, 4.0, 2.0)


def test_an_objective_is_parsed_or_refused() -> None:
    assert parse_slo("ttft=0.5, e2e=10") == Slo(ttft=0.5, e2e=10.0)
    assert parse_slo(Slo(0.5, 0.05, 3.0).text) == Slo(0.5, 0.05, 3.0)
    for text in ("", "ttft", "ttft=0", "ttft=nan", "ttft=inf", "ttft=x", "itl=1", "ttft=1,ttft=2"):
        with pytest.raises(ConfigError, match="--slo"):
            parse_slo(text)
