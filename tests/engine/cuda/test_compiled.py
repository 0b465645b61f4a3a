"""Every kernel as large models launch it, compiled for a Hopper GPU: what an interpreter cannot show of it."""

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


@pytest.fixture(scope="module")
def launches() -> list[dict[str, Any]]:
    """What ``production`` prints; compiled in a process whose Triton does not interpret."""
    kept = Path(os.environ["XDG_CACHE_HOME"]) / "triton"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.engine.cuda.production"],
        env=environment | {"TRITON_CACHE_DIR": str(kept)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(ran.stdout.splitlines()[-1])
    return found


def launched_kernels() -> set[str]:
    """Names of all kernels; they are what a grid is given to: ``_name[..](..)``."""
    trees = [ast.parse(file.read_text()) for file in KERNELS.glob("*.py")]
    calls = [node.func.value for tree in trees for node in ast.walk(tree)
             if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)]  # fmt: skip
    return {call.id for call in calls if isinstance(call, ast.Name) and call.id.startswith("_")}


def test_every_kernel_is_compiled(launches: list[dict[str, Any]]) -> None:
    launched = launched_kernels()
    assert len(launched) > 10
    assert {launch["kernel"] for launch in launches} == launched


def test_steps_of_any_size_launch_the_same_kernels(launches: list[dict[str, Any]]) -> None:
    assert [(launch["kernel"], launch["case"]) for launch in launches if launch["case"].startswith("again")] == []


def test_nothing_is_spilled_and_everything_fits(launches: list[dict[str, Any]]) -> None:
    assert [launch for launch in launches if launch["stack"] or launch["shared"] > SHARED] == []


def test_products_are_hoppers(launches: list[dict[str, Any]]) -> None:
    products = [one for one in launches if one["kernel"] in PRODUCTS and not one["case"].startswith("fp32")]
    assert [launch for launch in products if not launch["wgmma"] or launch["mma_sync"]] == []
    assert not any(launch["wgmma"] for launch in launches if launch["kernel"] not in PRODUCTS)


def test_rounding_is_as_written(launches: list[dict[str, Any]]) -> None:
    assert [launch for launch in launches if launch["fuses"]] == []
