"""Provides step times of a target for ``auto``: measured once per machine and model, then read from the cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.config.serve import ServeConfig
from app.inputs.devices import default_threads
from app.version import VERSION
from engine.model.identity import model_hash
from engine.step_cost import StepCosts, costs_file, read_costs, write_costs
from engine.target_model.options import AUTO, CPU_CACHE, GIB
from engine.target_model.step_timing import measure
from speculators.methods import chooses_nodes

if TYPE_CHECKING:  # loads torch
    from engine.target_model.local import LocalTarget


def costs_name(path: Path, device: str, layout: str, cache: float | str, place: str = "offline") -> str:
    """Return the name of a model's step times in the cache, without the precision, which is known only after loading.

    The size of the KV ``cache`` (GiB or "auto") is part of it: a small one has no room to measure large batches.
    """
    if cache == AUTO and device == "cpu":
        cache = CPU_CACHE / GIB
    size = cache if isinstance(cache, str) else f"{cache:g}"
    return f"step-costs/{model_hash(path)}-{place}-{device.replace(':', '')}-{layout}-{size}-{VERSION}"


def layout_of(config: ServeConfig, threads: int) -> str:
    """Return stages, ranks of a stage if there are several, and threads of a process, as in ``2x4x1``."""
    ranks = f"{config.tensor_parallel}x" if config.tensor_parallel > 1 else ""
    return f"{config.stages}x{ranks}{threads}"


def offline_costs(config: ServeConfig, methods: Sequence[str], path: Path, target: LocalTarget) -> StepCosts | None:
    """Return step times for an offline command, if one of its methods is ``auto``. Measuring takes about 370 steps."""
    if not any(map(chooses_nodes, methods)):
        return None
    threads = config.threads or default_threads(config.tensor_parallel)
    name = costs_name(path, config.device, layout_of(config, threads), config.kv_gib)
    file = costs_file(f"{name}-{target.info.identity.numbers}")
    costs = read_costs(file)
    if costs is None:
        costs = measure(target)
        write_costs(file, costs)
    return costs
