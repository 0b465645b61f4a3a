"""``spectra plan``: a config is enough, and every figure names its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.simulated.profile import profile_of
from tests.support.model_shapes import llama_70b
from tests.support.spectra_command import run_cli

FLAGS = ("--gpus", 8, "--gpu-memory-gib", 80)


@pytest.fixture(scope="module")
def seventy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the config of a 70B model and nothing else."""
    folder = tmp_path_factory.mktemp("seventy")
    config = llama_70b()
    config.dtype = "bfloat16"
    config.save_pretrained(folder)
    return folder


def document(model: Path, *flags: object, status: int = 0) -> dict[str, Any]:
    ran = run_cli("plan", "--model", model, *flags, "--json")
    assert ran.status == status, ran.err
    return ran.document


def test_a_config_alone_gives_a_plan_and_the_command_that_serves_it(seventy: Path) -> None:
    by_folder, by_file = (document(model, *FLAGS) for model in (seventy, seventy / "config.json"))
    assert (by_folder["layouts"], by_folder["choices"]) == (by_file["layouts"], by_file["choices"])
    assert by_folder["parameters"] == pytest.approx(70.6e9, rel=0.01)
    fastest = by_folder["choices"]["latency"]
    begins = f"spectra serve --model {seventy} --device cuda --stages 1 --tensor-parallel 8 --stage-gpus 1 "
    assert fastest["command"].startswith(begins)
    layout = by_folder["layouts"][fastest["layout"]]
    assert (layout["stages"], layout["tensor_parallel"]) == (1, 8)
    assert layout["load_seconds"].keys() == {"1.5 GB/s", "5 GB/s"}
    assert profile_of(layout["profile"]).exchange_s > 0
    sources = {one["name"]: one["source"] for one in by_folder["estimates_from"]}
    assert sources["memory_bytes_per_s"] == "a copy on an H200, measured with PyTorch alone"
    assert "fit" in sources["tokens_per_forward"]
    halved = document(
        seventy / "config.json", *FLAGS, "--tensor-parallel", 1, "--dtype", "float16", "--quantization", "fp8"
    )
    begins = f"spectra serve --model {seventy} --dtype float16 --quantization fp8 --device cuda "
    commands = [one["command"] for one in halved["choices"].values()]
    assert [one.startswith(begins) for one in commands] == [True, True]
    assert "--tensor-parallel" not in " ".join(commands)
    assert halved["weight_bytes"] < 0.6 * by_folder["weight_bytes"]
    profiled = document(seventy, *FLAGS, "--profile", "70b-h100x4", "--stages", 4)
    assert "memory_bytes_per_s" not in {one["name"] for one in profiled["estimates_from"]}


def test_the_text_says_what_is_an_estimate_and_what_was_given(seventy: Path) -> None:
    given = ("--tokens-per-forward", 2.2, "--memory-tbs", 3, "--quantization", "int8")
    ran = run_cli("plan", "--model", seventy, *FLAGS, *given)
    assert ran.status == 0
    assert "are estimates" in ran.out
    assert "For the least time per token of one stream, 1 x 1 x 8:" in ran.out
    lines = [line.split() for line in ran.out.splitlines()]
    assert ["memory_bytes_per_s", "3e+12", "given"] in lines
    assert ["tokens_per_forward", "2.2", "given"] in lines
    ran = run_cli("plan", "--model", seventy, *FLAGS, "--context", 200000)
    assert (ran.status, "the model allows 131072 tokens" in ran.err) == (2, True)


def test_a_model_that_does_not_fit_is_status_1(seventy: Path) -> None:
    found = document(seventy, "--gpus", 1, "--gpu-memory-gib", 80, status=1)
    assert (found["fits"], found["choices"]) == (False, {})
    ran = run_cli("plan", "--model", seventy, "--gpus", 1, "--gpu-memory-gib", 80)
    assert (ran.status, "does not fit" in ran.out) == (1, True)


def test_nodes_fix_the_tree_and_without_them_the_fastest_is_chosen(seventy: Path) -> None:
    def trees(*flags: object) -> set[int]:
        found = document(seventy, *FLAGS, "--stages", 8, *flags)["layouts"][0]["tokens_per_second"]
        return {one["nodes"] for one in found}

    assert trees("--nodes", 8) == {8}
    assert trees("--tokens-per-forward", 3) == {63}
    assert len(trees()) > 1


def test_costs_follow_from_the_price_and_the_rates(seventy: Path) -> None:
    flags = (*FLAGS, "--tensor-parallel", 4, "--gpu-price", 4.5)
    found = document(seventy, *flags)
    layout = found["layouts"][0]
    cents = 4.5 * found["gpus"] / 3600 * 1e6  # per million seconds of all GPUs
    rates, costs = layout["tokens_per_second"], layout["dollars_per_million"]
    for rate, cost in zip(rates, costs["output"], strict=True):
        assert (cost["plain"] * rate["plain"], cost["drafted"] * rate["drafted"]) == pytest.approx((cents, cents))
    assert costs["input"] * layout["prompt_tokens_per_second"] == pytest.approx(cents)
    flops = 2 * found["parameters"] * layout["prompt_tokens_per_second"] / found["gpus"]
    assert 0.4 * 790e12 < flops < 790e12, "most of the arithmetic of the GPUs"
    out = run_cli("plan", "--model", seventy, *flags).out
    full = costs["output"][-1]
    shown = f"{full['plain']:.2f} -> {full['drafted']:.2f} ({full['streams']}) {costs['input']:.3f}"
    assert shown in " ".join(out.split())
    assert document(seventy, *FLAGS)["layouts"][0]["dollars_per_million"] is None
    for wrong in (0, "nan", "inf"):
        ran = run_cli("plan", "--model", seventy, *FLAGS, "--gpu-price", wrong)
        assert (ran.status, "--gpu-price is" in ran.err) == (2, True)
