"""Step times of a target for ``auto``: measured once per machine and model, then read from the user's cache."""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from app.inputs.cache import cache_folder
from app.version import VERSION
from engine.model.identity import model_hash
from engine.step_cost import StepCosts, read_costs, write_costs
from engine.target.step_timing import measure

if TYPE_CHECKING:  # loads torch
    from engine.target.local import LocalTarget

AUTO = "auto"


def costs_file(
    path: Path, dtype: str | None, device: str, stages: int, threads: int, cache: float, place: str = "offline"
) -> Path:
    """Where the step times of a model are kept; another machine, version or way to run it has another file.

    ``cache`` is its size: a small one has no room for the larger batches that a large one is measured with.
    """
    machine = f"{platform.node()}-{platform.machine()}-{os.cpu_count()}"
    run = f"{place}-{dtype or 'default'}-{device.replace(':', '')}-{stages}x{threads}-{cache:g}"
    return cache_folder() / "step-costs" / f"{model_hash(path)}-{run}-{VERSION}-{machine}.json"


def way(dtype: str | None, quantization: str | None) -> str | None:
    """The numbers a model runs in, as ``costs_file`` takes them."""
    return dtype if quantization is None else f"{dtype or 'default'}-{quantization}"


def offline_costs(arguments: argparse.Namespace, path: Path, target: LocalTarget) -> StepCosts | None:
    """Costs for an offline command, if one of its methods is ``auto``; measuring takes about 280 steps."""
    methods = getattr(arguments, "methods", None) or [arguments.method]
    if not any(AUTO in (part.strip() for part in method.split("+")) for method in methods):
        return None
    numbers = way(arguments.dtype, arguments.quantization)
    file = costs_file(path, numbers, arguments.device, arguments.stages, arguments.threads, arguments.kv_gib)
    costs = read_costs(file)
    if costs is None:
        costs = measure(target)
        write_costs(file, costs)
    return costs
