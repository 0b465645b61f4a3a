"""``spectra load`` with real servers: its output, files and exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from app.commands.measuring.load import KEY_VARIABLE
from tests.app.conftest import ScriptedBackend
from tests.app.load.conftest import TEXT, Script, answer
from tests.support.spectra_command import CliRun, run_cli

BROKEN = (200, {}, [*answer()[:4], Script.BREAK])
Load = Callable[..., CliRun]


@pytest.fixture
def load() -> Load:
    """``load(url, "--rate", 5)``: runs the command in this process."""

    def run(url: str, *more: object, status: int = 0) -> CliRun:
        ran = run_cli("load", "--url", url, *more)
        assert ran.status == status, ran.err
        return ran

    return run


@pytest.mark.parametrize(
    ("endpoint", "loop"),
    [
        ("chat", ("--concurrency", 4)),
        ("completions", ("--rate", 200)),
        ("chat", ("--rate", 200, "--arrivals", "fixed")),
    ],
)
def test_our_server_repeats_its_answers_and_reports_usage(
    server: str, backend: ScriptedBackend, load: Load, endpoint: str, loop: tuple[object, ...]
) -> None:
    flags = ("--temperature", 0.8, "--max-tokens", 20, "--repeat-check", 5, "--slo", "ttft=3600", "--warmup", 3)
    document = load(server, "--endpoint", endpoint, "--requests", 20, *flags, *loop).document
    assert (document["ok"], document["failed"], document["warmup"]) == (20, 0, {"requests": 3, "failed": 0})
    assert document["output_tokens"] == 20 * 20
    assert (document["tpot"]["n"], document["slo_met"]) == (20, 20)
    assert document["identity"] == {"compared": 20, "groups": 5, "differing": []}
    assert document["speculation"]["by_source"]["pld"]["drafted"] == document["speculation"]["num_draft_tokens"] > 0
    assert {request.params.seed for request in backend.seen} >= set(range(5))
    assert not backend.running


def test_bodies_hold_openais_fields_and_flags(script: Script, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    load(script.url, "--requests", 1, "--max-tokens", 9)
    fields = {"model", "messages", "max_tokens", "temperature", "seed", "stream", "stream_options"}
    assert set(script.bodies[0]) == fields
    assert script.bodies[0]["model"] == "tiny", "the first that is listed"
    assert "authorization" not in script.headers[0]
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    extra = ("--extra", '{"top_p": 0.9, "seed": null}')
    ran = load(script.url, "--requests", 2, "--model", "other", "--ignore-eos", *extra)
    for body, headers in zip(script.bodies[1:], script.headers[1:], strict=True):
        assert (body["model"], body["ignore_eos"], body["top_p"], "seed" in body) == ("other", True, 0.9, False)
        assert headers["authorization"] == "Bearer secret"
    assert "secret" not in ran.out + ran.err


def test_broken_streams_are_retried_and_reported(script: Script, load: Load, tmp_path: Path) -> None:
    script.replies.append(BROKEN)
    ran = load(script.url, "--requests", 4, "--retry", 2, "--out", tmp_path / "out", "--json", tmp_path / "run.json")
    assert (ran.document["ok"], ran.document["retries"], ran.document["recovery"]["n"]) == (4, 1, 1)
    assert ran.document["failed_attempts"] == {"broken stream": 1}
    assert json.loads((tmp_path / "run.json").read_text()) == ran.document
    files = ["latency.png", "load.json", "records.jsonl", "tables.md", "timeline.png"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == files
    records = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    assert [(record["index"], record["text"]) for record in records] == [(i, TEXT) for i in range(4)]


def test_divergent_and_differing_answers_are_status_1(script: Script, load: Load) -> None:
    for text in ("something else, and longer", TEXT[:12]):
        script.replies += [BROKEN, (200, {}, answer(text))]
        ran = load(script.url, "--requests", 1, "--retry", 1, status=1)
        assert (ran.document["diverged"], ran.document["failed"]) == (1, 0)
        assert "DIVERGED" in ran.out
        assert "DIVERGED" in ran.err
    script.replies += [(200, {}, answer("one")), (200, {}, answer("two"))]
    ran = load(script.url, "--requests", 2, "--temperature", 1, "--repeat-check", 1, status=1)
    assert len(ran.document["identity"]["differing"]) == 1
    assert "from character 0 on 'one' and 'two'" in ran.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--arrivals", "fixed"], "--arrivals fixed is for an open loop: give --rate as well"),
        (["--slo", "itl=1"], "--slo 'itl=1': 'itl' must be one of ttft, tpot, e2e"),
        (["--extra", '{"stream": true}'], "--extra sets 'stream'"),
        (["--model", "m", "--json", "/dev/null/x"], "--json"),
        (["--url", "http://127.0.0.1:1"], "--url: no server answers at http://127.0.0.1:1/v1"),
        (["--url", "LISTS NOTHING"], "--url: GET"),
    ],
)
def test_a_wrong_flag_is_one_clear_line(script: Script, load: Load, flags: list[str], message: str) -> None:
    script.models = []
    ran = load(script.url, *(script.url if flag == "LISTS NOTHING" else flag for flag in flags), status=2)
    assert ran.err.count("\n") == 1
    assert ran.err.startswith(f"spectra: {message}")
    assert not script.bodies
