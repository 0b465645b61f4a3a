"""``spectra bench``: real runs on a tiny model; what it prints and leaves in its folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.spectra_command import CliRun, generated, run_cli

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["The quick brown fox jumps", "over the lazy dog"]},
    {"question_id": 82, "category": "qa", "turns": ["Snow falls on the quiet town"]},
    {"question_id": 83, "category": "qa", "turns": ["Speculation drafts tokens and tokens"]},
]
KEYS = {"tokens_per_forward", "speedup", "mic_tp", "mac_tp", "identical_to_autoregressive", "by_category"}
PLOTS = ["sources.png", "speedup.png", "step_time.png", "tau.png"]
METHODS = ("--methods", "pld,spectra-core", "--max-nodes", 16)

Bench = Callable[..., CliRun]


@pytest.fixture(scope="module")
def flags(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    prompts = tmp_path_factory.mktemp("prompts") / "questions.jsonl"
    prompts.write_text("\n".join(json.dumps(question) for question in QUESTIONS))
    return ["bench", "--model", str(tiny_checkpoint), "--prompts", str(prompts), "--max-tokens", "16"]


@pytest.fixture(scope="module")
def finished(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[CliRun, Path]:
    """One run, and its folder."""
    out = tmp_path_factory.mktemp("finished") / "out"
    return run_cli(*flags, "--out", out, *METHODS), out


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def bench(flags: list[str], out: Path) -> Bench:
    return lambda *more: run_cli(*flags, "--out", out, *more)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()[1:]]


def test_the_last_line_is_the_document_and_the_folder_holds_the_rest(finished: tuple[CliRun, Path]) -> None:
    ran, out = finished
    assert ran.status == 0
    shown = ran.document
    assert list(shown["methods"]) == ["autoregressive", "pld", "spectra-core"]
    assert shown["prompts"] == 3
    for name, method in shown["methods"].items():
        assert set(method) >= KEYS
        assert method["identical_to_autoregressive"] is True
        assert list(method["by_category"]) == ["writing", "qa"]
        assert method["tokens_per_forward"] == 1 if name == "autoregressive" else method["tokens_per_forward"] >= 1
        assert min(method["speedup"], method["mic_tp"], method["mac_tp"]) > 0
    assert shown["methods"]["autoregressive"]["speedup"] == 1
    assert sorted(path.name for path in out.glob("*.png")) == PLOTS
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in PLOTS)
    assert json.loads((out / "bench.json").read_text()) == shown
    assert ran.out.startswith((out / "tables.md").read_text().rstrip("\n"))
    assert "## greedy, cold" in ran.out
    assert "Every output is identical to autoregressive decoding's." in ran.out
    assert len(records(out)) == 3 * 4
    assert "12/12" in ran.err  # the progress bar


def test_records_equal_the_lines_of_generate(
    finished: tuple[CliRun, Path], flags: list[str], tiny_checkpoint: Path
) -> None:
    ran, out = finished
    found = [record for record in records(out) if record["method"] == "spectra-core"]
    by_turn = {(record["index"], record.get("turn", 0)): record for record in found}
    prompts = ("--prompts", flags[flags.index("--prompts") + 1], "--max-tokens", 16, "--max-nodes", 16)
    lines = generated(tiny_checkpoint, *prompts, "--method", "spectra-core")
    assert len(by_turn) == len(lines) == 4
    for line in lines:
        record = by_turn[line["index"], line["turn"]]
        for key in ("token_ids", "step_tokens", "finish_reason"):
            assert record[key] == line[key]
        drafted = {name: counts["drafted"] for name, counts in record.get("by_source", {}).items()}
        assert drafted == {name: counts["drafted"] for name, counts in line["by_source"].items()}
    tokens, forwards = (sum(sum(r["step_tokens"]) for r in found), sum(len(r["step_tokens"]) for r in found))
    assert ran.document["methods"]["spectra-core"]["tokens_per_forward"] == round(tokens / forwards, 4)


def test_one_command_measures_greedy_and_sampled_cold_and_warm_runs_apart(bench: Bench) -> None:
    settings = ("--temperature", "0,0.8", "--state", "cold,warm", "--repeats", 2, "--limit", 2, "--per-category", 1)
    ran = bench("--methods", "pld", "--max-tokens", 8, "--batch-size", 2, "--stages", 2, "--raw", *settings)
    assert ran.status == 0
    runs = ran.document["runs"]
    expected = [(0.0, "cold"), (0.0, "warm"), (0.8, "cold"), (0.8, "warm")]
    assert [(run["temperature"], run["state"]) for run in runs] == expected
    assert ran.document["methods"] == runs[0]["methods"]
    for run in runs:
        assert run["methods"]["pld"]["outputs"] == 2 * 2
        assert len(run["methods"]["pld"]["speedup_repeats"]) == 2
        assert run["methods"]["pld"]["identical_to_autoregressive"] is True
    headings = [line for line in ran.out.splitlines() if line.startswith("## ")]
    assert headings == [f"## {how}, {state}" for how in ("greedy", "temperature 0.8") for state in ("cold", "warm")]


def test_a_finished_bench_measures_nothing_again_and_other_settings_need_restart(
    finished: tuple[CliRun, Path], bench: Bench, out: Path
) -> None:
    first, folder = finished
    shutil.copytree(folder, out)
    before = (out / "records.jsonl").read_bytes()
    assert bench(*METHODS).out.splitlines()[:-1] == first.out.splitlines()[:-1]
    refused = bench(*METHODS, "--max-tokens", 8)
    assert (refused.status, refused.out) == (2, "")
    assert "max_tokens: 16 there, 8 now" in refused.err
    assert "--restart" in refused.err
    assert (out / "records.jsonl").read_bytes() == before
    assert bench("--methods", "pld", "--max-tokens", 8, "--restart").status == 0
    assert max(len(record["token_ids"]) for record in records(out)) == 8


def test_a_record_that_differs_from_autoregressive_decoding_fails_the_bench(
    finished: tuple[CliRun, Path], bench: Bench, out: Path
) -> None:
    shutil.copytree(finished[1], out)
    header, *lines = (out / "records.jsonl").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if json.loads(line)["method"] == "pld")
    record = json.loads(lines[at])
    record["token_ids"][-1] += 1
    lines[at] = json.dumps(record)
    (out / "records.jsonl").write_text("\n".join([header, *lines]) + "\n")
    ran = bench(*METHODS)
    assert ran.status == 1
    assert "differ" in ran.err
    assert "NOT identical to autoregressive decoding (outputs that differ): pld (1)." in ran.out
    identical = {name: method["identical_to_autoregressive"] for name, method in ran.methods.items()}
    assert identical == {"autoregressive": True, "pld": False, "spectra-core": True}
    assert ran.methods["pld"]["identical"] == 3


def test_texts_that_may_differ_are_reported_and_do_not_fail_the_bench(bench: Bench) -> None:
    # Rejection sampling draws other random numbers: equal in distribution, not token by token.
    ran = bench("--methods", "pld", "--verification", "rejection", "--temperature", 1.5, "--limit", 2)
    assert ran.status == 0
    assert ran.methods["pld"]["identical_to_autoregressive"] is False
    assert "which their settings allow" in ran.err
