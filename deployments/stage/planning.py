"""Plans a deployed pipeline in the process of one of its stages: layers are timed on the device they will run on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from deployments.pipeline.stage_reports import StagePlan, StageRoom
from engine.errors import ConfigError
from engine.model.build import empty_model
from engine.model.identity import file_hashes
from engine.model.loader import load_config
from engine.target_model.loading import describe_target
from engine.target_model.memory import with_cache
from engine.target_model.numerics import adopt, weakest, with_numerics
from engine.target_model.options import LAYERS, Resolution, TargetOptions, is_cuda
from engine.target_model.split import memory_of_stages, stage_ranges

logger = logging.getLogger(__name__)


def plan_stages(options: TargetOptions, path: Path, rooms: Sequence[StageRoom] = ()) -> StagePlan:
    """Describe the target and split it into stages. With ``split`` = "measured" this takes some seconds, in which the
    device must be idle.

    Args:
        options: of the target.
        path: checkpoint directory, on every node.
        rooms: of all processes. The weakest numerics among them are those of the pipeline; unless the options name the
            size of the KV cache, the stage that has least memory for it decides.

    Raises:
        ConfigError: an option is wrong, or the stages' memory does not hold weights and KV cache.
        UnsupportedModelError: the checkpoint cannot be run.
    """
    options = with_numerics(options, path)
    found = [room.numerics for room in rooms] or [options.resolution or Resolution(LAYERS)]
    numerics = weakest(found)
    if len({one.numerics for one in found}) > 1:
        logger.warning("numerics of all stages: %s; they found: %s", numerics, "; ".join(map(str, found)))
    options = with_cache(adopt(options, numerics), path, [room.n_bytes for room in rooms])
    info = describe_target(options, path)
    ranges = stage_ranges(options, path, info)
    if torch.device(options.device).type == "cuda":
        torch.cuda.empty_cache()  # free the memory of the measurement for the stages
    memory = [*map(str, memory_of_stages(options, path, info, ranges))]
    if info.drafter is not None:
        memory[-1] += f"; drafter: {info.drafter}"
    if is_cuda(options.device) and not options.simulation:
        memory = [f"{one}; numerics: {numerics}" for one in memory]
    files = {} if options.simulation else file_hashes(path)
    return StagePlan(info, tuple(ranges), tuple(memory), files, numerics, options.tensor_parallel)


def prepare(options: TargetOptions, path: Path) -> None:
    """Import the model's code and open the device, without any weights.

    Raises:
        UnsupportedModelError: there is no config of a model that can be run.
    """
    if options.simulation is None:
        empty_model(load_config(path))
    torch.empty(1, device=options.device)


def check_checkpoint(plan: StagePlan, path: Path) -> None:
    """Refuse a checkpoint that differs from the planned one in a file that both have.

    Raises:
        ConfigError: a file has other contents.
    """
    here = file_hashes(path) if plan.files else {}
    for name in here.keys() & plan.files.keys():
        if here[name] != plan.files[name]:
            raise ConfigError(
                f"{path / name} is not the file of that name with which the pipeline began ({here[name][:12]} instead "
                f"of {plan.files[name][:12]}): the model has changed, or differs between nodes; start the pipeline anew"
            )
