"""Which layers each stage of a deployed pipeline runs; times are taken where the stages will run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import ray
import torch
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from deployments.options import PipelineOptions
from engine.errors import SpectraError
from engine.model.shard import LayerRange
from engine.target import TargetInfo, TargetOptions, is_measured, memory_of_stages, stage_ranges

logger = logging.getLogger(__name__)


def deployed_ranges(
    target: TargetOptions,
    pipeline: PipelineOptions,
    path: Path,
    info: TargetInfo,
    group: PlacementGroup | None,
    environment: dict[str, str],
    bundle: int = 0,
) -> list[LayerRange]:
    """The layers of every stage, and a log line for what each will hold.

    Args:
        target: says how to split.
        pipeline: resources of a stage, which the measurement takes as long as it lasts: call this before stages start.
        path: checkpoint directory, on every node.
        info: of the target.
        group: whose bundles the stages get; None: the measurement runs anywhere.
        environment: of a stage's process.
        bundle: the one to measure on; all stages are taken to have such a device.

    Raises:
        ConfigError: an option is wrong, or the stages' memory does not hold weights and KV cache.
        UnsupportedModelError: the checkpoint cannot be run.
    """
    if is_measured(target):
        strategy: Any = "DEFAULT"
        if group is not None:
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        once = ray.remote(max_calls=1)  # the process, and the memory it holds on the device, goes before a stage comes
        task = once(_measured).options(
            num_cpus=pipeline.cpus,
            num_gpus=pipeline.gpus,
            scheduling_strategy=strategy,
            runtime_env={"env_vars": environment},
        )
        ranges, refused = ray.get(task.remote(target, path, info, pipeline.threads))
        if refused is not None:
            raise refused
    else:
        ranges = stage_ranges(target, path, info)
    for stage, memory in enumerate(memory_of_stages(target, path, info, ranges)):
        logger.info("stage %d: %s", stage, memory)
    return list(ranges)


def _measured(
    target: TargetOptions, path: Path, info: TargetInfo, threads: int
) -> tuple[list[LayerRange], SpectraError | None]:
    """``stage_ranges`` in a task; what it refuses comes back as it is, not wrapped in Ray's error."""
    torch.set_num_threads(threads)
    try:
        return stage_ranges(target, path, info), None
    except SpectraError as error:
        return [], error
