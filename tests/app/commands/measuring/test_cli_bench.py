"""``spectra bench``: real runs on a tiny model; what it prints and leaves behind is a contract."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from app.cli import main
from tests.support.cli_run import CliRun, run_cli

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["The quick brown fox jumps", "over the lazy dog"]},
    {"question_id": 82, "category": "qa", "turns": ["Snow falls on the quiet town"]},
    {"question_id": 83, "category": "qa", "turns": ["Speculation drafts tokens and tokens"]},
]
KEYS = {"tokens_per_forward", "speedup", "mic_tp", "mac_tp", "identical_to_autoregressive", "by_category"}
PLOTS = ["sources.png", "speedup.png", "step_time.png", "tau.png"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps(question) for question in QUESTIONS))
    return path


@pytest.fixture
def flags(tiny_checkpoint: Path, prompts: Path, tmp_path: Path) -> list[str]:
    fixed = {"--model": tiny_checkpoint, "--prompts": prompts, "--out": tmp_path / "out", "--max-new-tokens": 16}
    return ["bench", *(str(part) for pair in fixed.items() for part in pair)]


@pytest.fixture
def bench(flags: list[str], capsys: pytest.CaptureFixture[str]) -> Callable[..., CliRun]:
    """``bench("--methods", "pld", ...)``: runs the command here."""

    def run(*more: object) -> CliRun:
        return run_cli(capsys, *flags, *more)

    return run


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """The command sets the number of threads of the process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()[1:]]


def test_the_last_line_is_the_document_and_the_folder_holds_the_rest(
    bench: Callable[..., CliRun], tmp_path: Path
) -> None:
    ran = bench("--methods", "pld,spectra-core")
    assert ran.status == 0
    shown = ran.document
    assert list(shown["methods"]) == ["autoregressive", "pld", "spectra-core"]
    assert shown["prompts"] == 3
    assert Path(shown["model"]).is_dir()
    for name, method in shown["methods"].items():
        assert set(method) >= KEYS
        assert method["identical_to_autoregressive"] is True
        assert list(method["by_category"]) == ["writing", "qa"]
        assert all(set(some) >= KEYS - {"by_category"} for some in method["by_category"].values())
        assert method["tokens_per_forward"] == 1 if name == "autoregressive" else method["tokens_per_forward"] >= 1
        assert method["speedup"] > 0
        assert method["mic_tp"] > 0
        assert method["mac_tp"] > 0
    assert shown["methods"]["autoregressive"]["speedup"] == 1
    out = tmp_path / "out"
    assert sorted(path.name for path in out.glob("*.png")) == PLOTS
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in PLOTS)
    assert json.loads((out / "bench.json").read_text()) == shown
    assert ran.out.startswith((out / "tables.md").read_text().rstrip("\n"))
    assert "## greedy, cold" in ran.out
    assert "Every output is identical to autoregressive decoding's." in ran.out
    assert len(records(out)) == 3 * 4
    assert "12/12" in ran.err  # the progress bar


def test_figures_agree_with_generate(
    bench: Callable[..., CliRun],
    tmp_path: Path,
    tiny_checkpoint: Path,
    prompts: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = bench("--methods", "spectra-core", "--max-nodes", 16, "--temperature", 0.7, "--seed", 5).document
    generate = ["--model", str(tiny_checkpoint), "--prompts", str(prompts), "--max-new-tokens", "16", "--json"]
    more = ["--method", "spectra-core", "--max-nodes", "16", "--temperature", "0.7", "--seed", "5"]
    assert main(["generate", *generate, *more]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    mine = [record for record in records(tmp_path / "out") if record["method"] == "spectra-core"]
    made = {(record["index"], record.get("turn", 0)): record for record in mine}
    assert len(made) == len(lines) == 4
    for line in lines:
        record = made[line["index"], line["turn"]]
        assert record["token_ids"] == line["token_ids"]
        assert record["step_tokens"] == line["step_tokens"]
        assert record["finish_reason"] == line["finish_reason"]
        drafted = {name: counts["drafted"] for name, counts in record.get("by_source", {}).items()}
        assert drafted == {name: counts["drafted"] for name, counts in line["by_source"].items()}
    tokens, forwards = (sum(sum(r["step_tokens"]) for r in mine), sum(len(r["step_tokens"]) for r in mine))
    assert shown["methods"]["spectra-core"]["tokens_per_forward"] == round(tokens / forwards, 4)


def test_one_command_gives_greedy_and_sampling_cold_and_warm_apart(bench: Callable[..., CliRun]) -> None:
    ran = bench("--methods", "pld", "--temperature", "0,0.8", "--state", "cold,warm", "--repeats", 2)
    assert ran.status == 0
    runs = ran.document["runs"]
    settings = [(run["temperature"], run["state"]) for run in runs]
    assert settings == [(0.0, "cold"), (0.0, "warm"), (0.8, "cold"), (0.8, "warm")]
    assert ran.document["methods"] == runs[0]["methods"]
    for run in runs:
        assert run["methods"]["pld"]["outputs"] == 2 * 4
        assert len(run["methods"]["pld"]["speedup_repeats"]) == 2
        assert run["methods"]["pld"]["identical_to_autoregressive"] is True
    headings = [line for line in ran.out.splitlines() if line.startswith("## ")]
    assert headings == [
        "## greedy, cold",
        "## greedy, warm",
        "## temperature 0.8, cold",
        "## temperature 0.8, warm",
    ]


def test_warm_alone_is_labelled_warm(bench: Callable[..., CliRun]) -> None:
    ran = bench("--methods", "pld", "--warm")
    assert [run["state"] for run in ran.document["runs"]] == ["warm"]
    assert ran.document["methods"] == ran.document["runs"][0]["methods"]
    assert "## greedy, warm" in ran.out
    assert ran.out.startswith("Warm: measured in one pass, ")
    again = bench("--methods", "pld", "--warm", "--warm-passes", 1, "--restart")
    assert again.out.startswith("Warm: measured after one pass over the same prompts")
    assert len(again.document["notes"]) == 1


def test_batches_stages_and_raw_run_too(bench: Callable[..., CliRun]) -> None:
    ran = bench("--methods", "pld+spectra-core", "--batch-size", 3, "--stages", 2, "--raw")
    assert ran.status == 0
    assert ran.document["methods"]["pld+spectra-core"]["outputs"] == 3
    assert ran.document["identical_to_autoregressive"] is True


def test_a_category_is_the_files_name_when_a_question_has_none(
    bench: Callable[..., CliRun], tmp_path: Path, prompts: Path
) -> None:
    more = tmp_path / "gsm8k.jsonl"
    more.write_text("\n".join(json.dumps({"turns": [f"How many are {i} and {i}?"]}) for i in range(3)))
    ran = bench("--methods", "pld", "--prompts", prompts, more, "--per-category", 1, "--limit", 2)
    by_category = ran.document["methods"]["pld"]["by_category"]
    assert {name: some["outputs"] for name, some in by_category.items()} == {"writing": 2, "qa": 1, "gsm8k": 1}
    assert ran.document["prompts"] == 3


def test_a_finished_bench_measures_nothing_again_and_says_the_same(
    bench: Callable[..., CliRun], tmp_path: Path
) -> None:
    first = bench("--methods", "pld")
    before = (tmp_path / "out" / "records.jsonl").read_bytes()
    second = bench("--methods", "pld")
    assert second.out == first.out
    assert (tmp_path / "out" / "records.jsonl").read_bytes() == before


def test_other_settings_are_refused_unless_restarted(bench: Callable[..., CliRun], tmp_path: Path) -> None:
    bench("--methods", "pld")
    before = (tmp_path / "out" / "records.jsonl").read_bytes()
    refused = bench("--methods", "pld", "--max-new-tokens", 8)
    assert (refused.status, refused.out) == (2, "")
    assert "max_new_tokens: 16 there, 8 now" in refused.err
    assert "--restart" in refused.err
    assert (tmp_path / "out" / "records.jsonl").read_bytes() == before
    restarted = bench("--methods", "pld", "--max-new-tokens", 8, "--restart")
    assert restarted.status == 0
    assert max(len(record["token_ids"]) for record in records(tmp_path / "out")) == 8


def test_a_tampered_record_is_noticed(bench: Callable[..., CliRun], tmp_path: Path) -> None:
    assert bench("--methods", "pld").status == 0
    path = tmp_path / "out" / "records.jsonl"
    lines = path.read_text().splitlines()
    for i, line in enumerate(lines[1:], start=1):
        record = json.loads(line)
        if record["method"] == "pld":
            record["token_ids"][-1] += 1
            lines[i] = json.dumps(record)
            break
    path.write_text("\n".join(lines) + "\n")
    ran = bench("--methods", "pld")
    assert ran.status == 1
    assert "differ" in ran.err
    assert "NOT identical to autoregressive decoding (outputs that differ): pld (1)." in ran.out
    assert ran.document["methods"]["pld"]["identical_to_autoregressive"] is False
    assert ran.document["methods"]["pld"]["identical"] == 3
    assert ran.document["methods"]["autoregressive"]["identical_to_autoregressive"] is True


def test_texts_that_may_differ_are_reported_and_no_failure(bench: Callable[..., CliRun]) -> None:
    ran = bench("--methods", "pld", "--verification", "rejection", "--temperature", 1.5, "--max-new-tokens", 40)
    assert ran.status == 0
    same = ran.document["methods"]["pld"]["identical_to_autoregressive"]
    assert same is False  # another rule draws other numbers: equal in distribution, not in words
    assert "which their settings allow" in ran.err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--methods", "pld,magic"], "unknown method 'magic'"),
        (["--methods", "medusa"], "method 'medusa' needs a drafter"),
        (["--methods", "pld", "--repeats", "0"], "--repeats is 0"),
        (["--methods", "pld", "--warm-passes", "-1"], "--warm-passes is -1"),
        (["--methods", "pld", "--per-category", "0"], "--per-category is 0"),
        (["--methods", "pld", "--temperature", "0,3"], "--temperature is 3.0"),
        (["--methods", "pld", "--max-new-tokens", "5000"], "exceed the context of 4096"),
        (["--methods", "pld", "--prompts", "/nowhere.jsonl"], "/nowhere.jsonl"),
        (["--methods", "pld", "--prompts", "/dev/null"], "at least one prompt"),
    ],
    ids=str,
)
def test_what_cannot_run_is_refused_before_anything_runs(
    more: list[str], says: str, bench: Callable[..., CliRun], tmp_path: Path
) -> None:
    ran = bench(*more)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("spectra: ")
    assert says in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ([], "--methods"),
        (["--methods", "pld,"], "empty method"),
        (["--methods", "pld", "--temperature", "hot"], "no list of numbers"),
        (["--methods", "pld", "--state", "cold,tepid"], "'tepid' is neither cold nor warm"),
        (["--methods", "pld", "--state", "cold", "--warm"], "not allowed with"),
    ],
    ids=str,
)
def test_wrong_flags_are_a_usage_error(
    more: list[str], says: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*flags, *more])
    assert exit_.value.code == 2
    assert says in capsys.readouterr().err


CHILD = (
    "import sys; from app.cli import main; status = main(sys.argv[1:]);"
    "loaded = [name for name in ('ray', 'fastapi', 'uvicorn', 'matplotlib.pyplot') if name in sys.modules];"
    "print('loaded', loaded, file=sys.stderr); sys.exit(status)"
)


def test_a_stopped_or_killed_run_keeps_its_records_and_goes_on(
    bench: Callable[..., CliRun], flags: list[str], tmp_path: Path
) -> None:
    """Ctrl-C first, then SIGKILL, then to the end: nothing that was measured is measured again."""
    more = ["--methods", "pld,spectra-core", "--repeats", "12"]
    path = tmp_path / "out" / "records.jsonl"
    kept = b""
    for how, status in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, *flags, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        deadline = time.monotonic() + 400
        while not path.exists() or path.read_bytes().count(b"\n") < kept.count(b"\n") + 5:
            assert child.poll() is None, child.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child.send_signal(how)
        out, err = child.communicate(timeout=240)
        assert child.returncode == status, err
        assert out == ""
        if how == signal.SIGINT:
            assert "records are kept in" in err
            assert "loaded []" in err
        before, kept = kept, path.read_bytes()
        assert kept.startswith(before)
    whole = kept[: kept.rfind(b"\n") + 1]
    assert whole.count(b"\n") < 1 + 12 * 3 * 4  # it was stopped on its way
    ran = bench(*more)
    assert ran.status == 0
    assert path.read_bytes().startswith(whole)
    keys = [(r["method"], r.get("repeat", 0), r["index"], r.get("turn", 0)) for r in records(tmp_path / "out")]
    assert len(set(keys)) == 12 * 3 * 4
    assert len(keys) - len(set(keys)) <= 2  # a question stopped between its two turns is run again
    assert ran.document["methods"]["pld"]["outputs"] == 48
