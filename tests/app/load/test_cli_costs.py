"""``spectra load --gpu-price``: dollars per million tokens, with speculation and without."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from app.load.costs import OPEN_LOOP, subtract_phases
from tests.app.conftest import ScriptedBackend
from tests.app.load.conftest import Script
from tests.support.spectra_command import run_cli

FLAGS = ("--requests", 6, "--max-tokens", 20, "--gpu-price", 3.6, "--gpus", 1000)  # a dollar a second


def test_costs_divide_the_price_of_a_pass_by_its_tokens(
    server: str, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def metrics() -> str:
        """Three seconds of decoding for each of prefill, over two replicas."""
        n = len(backend.seen)
        names = {f'prefill_time_seconds_sum{{model="a{{b}} c",replica="{i}"}}': n / 2 for i in range(2)}
        lines = (names | {"decode_time_seconds_sum": 3.0 * n, "decode_time_seconds_count": 7.0}).items()
        return "".join(f"vllm:request_{name} {value}\n" for name, value in lines)

    monkeypatch.setattr(backend, "metrics_text", metrics)
    ran = run_cli("load", "--url", server, *FLAGS, "--method", "pld")
    assert ran.status == 0, ran.err
    first, second = ran.document["costs"]["passes"]
    assert first["speculation"] is True
    assert first["dollars"] == pytest.approx(ran.document["seconds"])
    assert first["input_share"] == second["input_share"] == pytest.approx(0.25)
    assert first["per_million_output_all"] == pytest.approx(1e6 * first["dollars"] / 120)
    assert first["per_million_output"] == pytest.approx(0.75 * first["per_million_output_all"])
    assert first["per_million_input"] * ran.document["prompt_tokens"] == pytest.approx(0.25e6 * first["dollars"])
    assert re.search(r"\| closed loop, concurrency 1 +\| with speculation ", ran.out)
    methods = [request.method for request in backend.seen]
    assert methods == ["pld"] * 6 + ["autoregressive"] * 6
    scopes = {(request.method, request.scope) for request in backend.seen}
    assert len({scope for _, scope in scopes}) == 2, "the second pass finds no prefixes of the first"
    assert OPEN_LOOP not in ran.out
    assert OPEN_LOOP in run_cli("load", "--url", server, *FLAGS, "--rate", 1000).out


def test_another_server_gets_one_pass_and_undivided_costs(script: Script) -> None:
    ran = run_cli("load", "--url", script.url, *FLAGS)
    (only,) = ran.document["costs"]["passes"]
    assert (ran.status, len(script.bodies), only["speculation"], only["input_share"]) == (0, 6, None, None)
    assert only["per_million_output_all"] > 0 == (only["per_million_input"] or 0)
    assert "costs are not divided" in ran.out


def test_phases_are_unknown_if_a_counter_restarted() -> None:
    assert subtract_phases((3.0, 5.0), (1.0, 2.0)) == (2.0, 3.0)
    assert subtract_phases((3.0, 5.0), (1.0, 6.0)) is subtract_phases((0.0, 5.0), (1.0, 2.0)) is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gpus", 2], "--gpus 2 is for costs: give --gpu-price as well"),
        (["--gpu-price", 1, "--gpus", 5000], "--gpus is 5000; it must be 1 to 4096"),
    ],
)
def test_a_price_needs_bounded_gpus(script: Script, flags: list[object], message: str) -> None:
    ran = run_cli("load", "--url", script.url, *flags)
    assert (ran.status, ran.err) == (2, f"spectra: {message}\n")


def test_each_of_several_loads_has_its_costs_files_and_prefixes(
    server: str, backend: ScriptedBackend, tmp_path: Path
) -> None:
    ran = run_cli("load", "--url", server, *FLAGS, "--method", "pld", "--concurrency", "1,3", "--out", tmp_path)
    assert ran.status == 0, ran.err
    loads = [(one["load"][-1], one["speculation"]) for one in ran.document["costs"]["passes"]]
    assert loads == [("1", True)] * 2 + [("3", True)] * 2  # this backend reports drafts in every pass
    assert [one["settings"]["concurrency"] for one in ran.document["loads"]] == [1, 3]
    assert json.loads((tmp_path / "load.json").read_text()) == ran.document
    assert all((tmp_path / f"concurrency-{n}" / "records.jsonl").is_file() for n in (1, 3))
    assert [request.teaches for request in backend.seen] == [True] * 6 + [False] * 18, (
        "the first pass runs as requested"
    )
    assert len({request.scope for request in backend.seen}) == 4
    for flags, says in ((("--concurrency", "1,3"), "--gpu-price"), (("--concurrency", "0"), "1 to 100000")):
        refused = run_cli("load", "--url", server, "--requests", 1, *flags)
        assert (refused.status, says in refused.err) == (2, True)


def test_problems_name_their_load(script: Script) -> None:
    script.default = (400, {}, [b"{}"])
    ran = run_cli("load", "--url", script.url, *FLAGS, "--concurrency", "1,3")
    assert ran.status == 1
    assert all(f"concurrency {n}: 6 of 6 requests failed" in ran.err for n in (1, 3))
