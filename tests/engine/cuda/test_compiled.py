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

ROOT = Path(__file__).parents[3]
KERNELS = ROOT / "engine/cuda/kernels"
SHARED = 227 << 10  # bytes that a program can have on an H100 or H200
PRODUCTS = {"_product", "_attend"}


def compile_cases(*names: str) -> list[dict[str, Any]]:
    """The output of ``production``, in a process whose Triton compiles; all cases without names."""
    kept = Path(os.environ["XDG_CACHE_HOME"]) / "triton"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.engine.cuda.production", *names],
        env=environment | {"TRITON_CACHE_DIR": str(kept)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(ran.stdout.splitlines()[-1])
    return found


def launched_kernels() -> set[str]:
    """Names of all kernels that are launched, as in ``_name[grid](..)``."""
    trees = [ast.parse(file.read_text()) for file in KERNELS.glob("*.py")]
    calls = [node.func.value for tree in trees for node in ast.walk(tree)
             if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)]  # fmt: skip
    return {call.id for call in calls if isinstance(call, ast.Name) and call.id.startswith("_")}


def check(launches: list[dict[str, Any]]) -> None:
    """Registers and shared memory suffice, products use Hopper's instruction, and no sum is fused with a product."""
    assert [one for one in launches if one["stack"] or one["shared"] > SHARED or one["fuses"]] == []
    products = [one for one in launches if one["kernel"] in PRODUCTS]
    assert [one for one in products if not one["wgmma"] or one["mma_sync"]] == []
    assert not any(one["wgmma"] for one in launches if one["kernel"] not in PRODUCTS)


@pytest.mark.cluster
def test_the_head_of_a_large_model_compiles_for_a_hopper_gpu() -> None:
    launches = compile_cases("head, torch.bfloat16")
    assert {launch["kernel"] for launch in launches} == {"_rms_norm", "_embed", "_product"}
    check(launches)


@pytest.mark.matrix
def test_every_kernel_compiles_for_a_hopper_gpu_and_is_the_same_for_steps_of_any_size() -> None:
    launches = compile_cases()
    assert {launch["kernel"] for launch in launches} == launched_kernels()
    assert [(one["kernel"], one["case"]) for one in launches if one["case"].startswith("again")] == []
    check(launches)
