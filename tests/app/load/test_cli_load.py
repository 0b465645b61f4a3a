"""``spectra load``: real runs against real servers; what it prints, leaves behind and exits with is a contract."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import main
from app.commands.measuring.load import KEY_VARIABLES
from tests.app.conftest import ScriptedBackend
from tests.app.load.conftest import TEXT, Script, answer
from tests.support.cli_run import CliRun, run_cli


@pytest.fixture
def load(capsys: pytest.CaptureFixture[str]) -> Callable[..., CliRun]:
    """``load(url, "--rate", 5)``: runs the command here."""

    def run(url: str, *more: object) -> CliRun:
        return run_cli(capsys, "load", "--url", url, *more)

    return run


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("loop", [("--concurrency", 4), ("--rate", 200), ("--rate", 200, "--arrivals", "fixed")])
def test_our_server_answers_alike_and_is_counted_by_its_usage(
    server: str, backend: ScriptedBackend, load: Callable[..., CliRun], endpoint: str, loop: tuple[object, ...]
) -> None:
    sampled = ("--temperature", 0.8, "--max-tokens", 20, "--repeat-check", 5)
    ran = load(server, "--endpoint", endpoint, "--requests", 20, *sampled, *loop, "--slo", "ttft=60", "--warmup", 3)
    document = ran.document
    assert (ran.status, document["ok"], document["failed"], document["warmup"]) == (
        0,
        20,
        0,
        {"requests": 3, "failed": 0},
    )
    assert document["output_tokens"] == 20 * 20
    assert (document["tpot"]["n"], document["slo_met"]) == (20, 20)
    assert document["identity"] == {"compared": 20, "groups": 5, "differing": []}
    assert document["speculation"]["by_source"]["pld"]["drafted"] == document["speculation"]["num_draft_tokens"] > 0
    assert {request.params.seed for request in backend.seen} >= set(range(5))
    assert not backend.running


def test_speculation_is_asked_for_only_when_told(
    server: str, backend: ScriptedBackend, load: Callable[..., CliRun]
) -> None:
    assert load(server, "--requests", 1).status == 0
    assert load(server, "--requests", 1, "--method", "pld", "--max-nodes", 7).status == 0
    methods = [(request.method, request.max_nodes) for request in backend.seen]
    assert methods == [("", None), ("pld", 7)]


def test_what_vllm_does_not_know_is_not_sent(script: Script, load: Callable[..., CliRun]) -> None:
    assert load(script.url, "--requests", 1, "--max-tokens", 9).status == 0
    assert set(script.bodies[0]) == {
        "model",
        "messages",
        "max_tokens",
        "temperature",
        "seed",
        "stream",
        "stream_options",
    }
    assert script.bodies[0]["model"] == "tiny", "the first that is listed"
    assert "authorization" not in script.headers[0]


def test_flags_reach_every_body(script: Script, load: Callable[..., CliRun], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLES[0], "secret")
    ran = load(
        script.url, "--requests", 3, "--model", "other", "--ignore-eos", "--extra", '{"top_p": 0.9, "seed": null}'
    )
    assert ran.status == 0
    assert [(b["model"], b["ignore_eos"], b["top_p"], "seed" in b) for b in script.bodies] == [
        ("other", True, 0.9, False)
    ] * 3
    assert {headers["authorization"] for headers in script.headers} == {"Bearer secret"}
    assert "secret" not in ran.out + ran.err


def test_a_refused_request_is_an_error_and_status_1(
    server: str, backend: ScriptedBackend, load: Callable[..., CliRun]
) -> None:
    backend.is_full = True
    ran = load(server, "--requests", 3, "--concurrency", 2)
    assert ran.status == 1
    assert (ran.document["errors"], ran.document["requests_per_s"]) == ({"429": 3}, 0)
    assert ran.document["retry_after"]["max"] == 2.0
    assert "3 of 3 requests failed (429: 3)" in ran.err


def test_broken_streams_are_retried_and_reported(script: Script, load: Callable[..., CliRun], tmp_path: Path) -> None:
    script.replies.append((200, {}, [*answer()[:4], Script.BREAK]))
    ran = load(script.url, "--requests", 4, "--retry", 2, "--out", tmp_path / "out", "--json", tmp_path / "run.json")
    assert (ran.status, ran.document["ok"], ran.document["retries"]) == (0, 4, 1)
    assert (ran.document["recovery"]["n"], ran.document["failed_attempts"]) == (1, {"broken stream": 1})
    assert json.loads((tmp_path / "run.json").read_text()) == ran.document
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "latency.png", "load.json", "records.jsonl", "tables.md", "timeline.png"
    ]  # fmt: skip
    records = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    assert [(record["index"], record["text"]) for record in records] == [(i, TEXT) for i in range(4)]


def test_a_retry_that_tells_another_story_is_status_1(script: Script, load: Callable[..., CliRun]) -> None:
    script.replies.append((200, {}, [*answer()[:4], Script.BREAK]))
    script.default = (200, {}, answer("something else"))
    ran = load(script.url, "--requests", 1, "--retry", 1)
    assert (ran.status, ran.document["diverged"], ran.document["failed"]) == (1, 1, 0)
    assert "DIVERGED" in ran.out
    assert "DIVERGED" in ran.err


def test_different_answers_to_the_same_question_are_status_1(script: Script, load: Callable[..., CliRun]) -> None:
    script.replies += [(200, {}, answer("one")), (200, {}, answer("two"))]
    ran = load(script.url, "--requests", 2, "--temperature", 1, "--repeat-check", 1)
    assert (ran.status, len(ran.document["identity"]["differing"])) == (1, 1)
    assert "from character 0 on 'one' and 'two'" in ran.err


def test_a_server_without_usage_gets_no_figures_of_tokens(script: Script, load: Callable[..., CliRun]) -> None:
    script.default = (200, {}, [part for part in answer() if b"completion_tokens" not in part])
    ran = load(script.url, "--requests", 2)
    assert ran.status == 0
    assert [ran.document[name] for name in ("output_tokens", "output_tokens_per_s", "tpot", "tokens_per_chunk")] == [
        None
    ] * 4
    assert "sent no usage" in ran.out
    assert ran.document["ttft"]["n"] == 2


def test_a_duration_ends_both_loops(script: Script, load: Callable[..., CliRun]) -> None:
    ran = load(script.url, "--duration", 0.5, "--concurrency", 2)
    assert (ran.status, ran.document["ok"]) == (0, len(script.bodies))
    before = len(script.bodies)
    ran = load(script.url, "--duration", 0.5, "--rate", 20, "--arrivals", "fixed")
    assert (ran.status, ran.document["ok"], len(script.bodies) - before) == (0, 10, 10)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--arrivals", "fixed"], "--arrivals fixed is for an open loop: give --rate as well"),
        (["--slo", "itl=1"], "--slo 'itl=1': 'itl' must be one of ttft, tpot, e2e"),
        (["--prompts", "/nowhere.jsonl"], "--prompts /nowhere.jsonl cannot be read"),
        (["--repeat-check", "9", "--requests", "9"], "--repeat-check 9"),
        (["--extra", '{"stream": true}'], "--extra sets 'stream'"),
        (["--out", "/dev/null/x"], "--out"),
        (["--model", "m", "--json", "/dev/null/x"], "--json"),
    ],
)
def test_wrong_flags_are_one_clear_line(
    script: Script, load: Callable[..., CliRun], flags: list[str], message: str
) -> None:
    ran = load(script.url, *flags)
    assert ran.status == 2
    assert ran.err.count("\n") == 1
    assert ran.err.startswith(f"spectra: {message}")
    assert not script.bodies


@pytest.mark.parametrize(
    "flags", [["--concurrency", "0"], ["--rate", "0"], ["--rate", "nan"], ["--rate", "1", "--concurrency", "1"],
              ["--extra", "[]"], ["--extra", "{"], ["--retry", "-1"], ["--duration", "inf"], []],
)  # fmt: skip
def test_flags_that_mean_nothing_are_refused_by_name(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["load", *(["--url", "http://127.0.0.1:1"] if flags else []), *flags])
    assert exit_.value.code == 2
    assert (flags[-2] if flags else "--url") in capsys.readouterr().err


def test_no_server_and_no_model_are_one_clear_line(script: Script, load: Callable[..., CliRun]) -> None:
    script.models = []
    assert "lists no model; give --model" in load(script.url).err
    ran = load("http://127.0.0.1:1")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "no server answers at http://127.0.0.1:1/v1" in ran.err
