"""Step times of a target for ``auto``: measured once per machine and model, then read from the user's cache."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from app.version import VERSION
from engine.model.identity import model_hash
from engine.step_cost import StepCosts, costs_file, read_costs, write_costs
from engine.target_model.options import CPU_CACHE, GIB
from engine.target_model.step_timing import measure
from speculators.methods import chooses_nodes

if TYPE_CHECKING:  # loads torch
    from engine.target_model.local import LocalTarget

AUTO = "auto"


def costs_name(path: Path, device: str, stages: int, threads: int, cache: float | str, place: str = "offline") -> str:
    """What the step times of a model are called in the cache, without the precision, which is known once it is loaded.

    ``cache`` is its size: a small one has no room for the larger batches that a large one is measured with.
    """
    if cache == AUTO:
        cache = CPU_CACHE / GIB if device == "cpu" else AUTO
    size = cache if isinstance(cache, str) else f"{cache:g}"
    run = f"{place}-{device.replace(':', '')}-{stages}x{threads}-{size}"
    return f"step-costs/{model_hash(path)}-{run}-{VERSION}"


def offline_costs(arguments: argparse.Namespace, path: Path, target: LocalTarget) -> StepCosts | None:
    """Costs for an offline command, if one of its methods is ``auto``; measuring takes about 370 steps."""
    methods = getattr(arguments, "methods", None) or [arguments.method]
    if not any(map(chooses_nodes, methods)):
        return None
    name = costs_name(path, arguments.device, arguments.stages, arguments.threads, arguments.kv_gib)
    file = costs_file(f"{name}-{target.info.identity.numbers}")
    costs = read_costs(file)
    if costs is None:
        costs = measure(target)
        write_costs(file, costs)
    return costs
