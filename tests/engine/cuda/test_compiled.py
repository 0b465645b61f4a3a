"""Every kernel as large models launch it, compiled for a Hopper GPU without one."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.cuda.kernels.gemm import ROW_TILES
from engine.cuda.occupancy import SMALL_HEAD, count_shared_bytes
from engine.cuda.plan.layout import TILE

ROOT = Path(__file__).parents[3]
KERNELS = ROOT / "engine/cuda/kernels"
SHARED = 227 << 10  # bytes that a program can have on an H100 or H200
PRODUCTS = {"_product", "_multiply_pairs", "_add_leaves"}  # whose tiles depend on the number of rows
PIPELINED = {"_product", "_multiply_pairs", "_attend", "_combine"}
COMPILE = """
import json, sys
from tests.engine.cuda.compiled import compile_kernels
from tests.engine.cuda.compiled_cases import CASES, REPEATED
cases = CASES | REPEATED
print(json.dumps(compile_kernels({name: cases[name] for name in sys.argv[1:] or cases})))
"""
OVERLAPPING = ("8B, 16 rows, overlapping launches", "Qwen3 30B-A3B, 16 rows, overlapping launches")


def compile_cases(*names: str) -> list[dict[str, Any]]:
    """Properties of the kernels of cases, of all without names, from a process whose Triton compiles."""
    kept = Path(os.environ["XDG_CACHE_HOME"]) / "triton"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-c", COMPILE, *names],
        env=environment | {"TRITON_CACHE_DIR": str(kept)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(ran.stdout.splitlines()[-1])
    return found


def launched_kernels() -> set[str]:
    """Names of all kernels that are launched, as in ``_name[grid](..)`` or ``rows.launch(_name, ..)``."""
    trees = [ast.parse(file.read_text()) for file in KERNELS.rglob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    direct = [call.func.value for call in calls if isinstance(call.func, ast.Subscript)]
    passed = [call.args[0] for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "launch"]
    return {name.id for name in (*direct, *passed) if isinstance(name, ast.Name) and name.id.startswith("_")}


def check(launches: list[dict[str, Any]]) -> None:
    """Nothing is spilled or fused, products use Hopper's instruction, copies overlap, and programs fit the card."""
    assert [one for one in launches if one["stack"] or one["shared"] > SHARED or one["fuses"]] == []
    multiplying = [one for one in launches if one["kernel"] in PIPELINED - {"_combine"}]
    assert [one for one in multiplying if not one["wgmma"] or one["mma_sync"]] == []
    assert not any(one["wgmma"] for one in launches if one not in multiplying)
    pipelined = [one for one in launches if one["kernel"] in PIPELINED]
    assert [one for one in pipelined if not one["copies"] or not one["waits"] or min(one["waits"]) == 0] == []
    for one in launches:
        constants = one["constants"]
        assert one["awaits_previous"] == (one["case"] in OVERLAPPING), one
        if one["kernel"] in {"_product", "_multiply_pairs"} and constants["block_m"] in ROW_TILES[:-1]:
            assert one["programs"] >= 2, one
        if one["kernel"] == "_attend":
            head_bytes = 2 * constants["block_d"]
            assert one["shared"] <= count_shared_bytes(5, TILE * head_bytes, constants["tile"] * head_bytes), one
            expected = 2 if constants["block_d"] <= SMALL_HEAD else 1  # as ``count_attention_programs`` assumes
            assert one["programs"] == expected, one


@pytest.mark.cluster
def test_layers_with_overlapping_launches_compile_for_a_hopper_gpu() -> None:
    launches = compile_cases(*OVERLAPPING)
    layer = {"_rms_norm", "_product", "_add_leaves", "_rope_write", "_attend", "_combine", "_gated"}
    assert {launch["kernel"] for launch in launches} == layer | {
        "_route",
        "_sort_pairs",
        "_multiply_pairs",
        "_sum_experts",
    }
    check(launches)


@pytest.mark.matrix
def test_every_kernel_compiles_for_a_hopper_gpu_and_only_products_depend_on_the_size_of_a_step() -> None:
    launches = compile_cases()
    assert {launch["kernel"] for launch in launches} == launched_kernels()
    assert [(one["kernel"], one["case"]) for one in launches if one["case"].startswith("repeated")] == []
    by_rows = {one["kernel"] for one in launches if one["case"].endswith(" rows") and ", 16 " not in one["case"]}
    assert by_rows == PRODUCTS
    check(launches)
