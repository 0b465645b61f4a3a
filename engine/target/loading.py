"""From options to a target's description and its stages, real or simulated; the only place that tells them apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.model.loader import load_spec
from engine.model.ranges import LayerRange
from engine.model.spec import ModelSpec
from engine.simulated.answers import Answers
from engine.simulated.profile import SIMULATED
from engine.simulated.stage import SimulatedStage
from engine.stage.base import StageLike
from engine.stage.stage import Stage
from engine.target.info import TargetInfo
from engine.target.local import load_layers, plan_cache, resolve_dtype
from engine.target.options import TargetOptions


def target_spec(options: TargetOptions, path: Path) -> ModelSpec:
    """The spec of a checkpoint directory; a simulated target has its vocabulary, and a layer for every stage.

    Raises:
        UnsupportedModelError: the checkpoint cannot be run.
    """
    spec = load_spec(path)
    if options.simulation is None:
        return spec
    n_layers = max(spec.n_layers, options.stages)
    return replace(spec, family=SIMULATED, n_layers=n_layers, layer_types=("full_attention",) * n_layers)


def describe_target(options: TargetOptions, path: Path) -> TargetInfo:
    """What a scheduler needs to know of the target.

    Raises:
        UnsupportedModelError: the checkpoint cannot be run.
        ConfigError: an option is wrong.
    """
    spec = target_spec(options, path)
    return plan_cache(spec, options, resolve_dtype(options.dtype, spec, options.device))


def load_stage(options: TargetOptions, path: Path, layers: LayerRange, info: TargetInfo) -> StageLike:
    """One stage of a pipeline, ready to work.

    Raises:
        UnsupportedModelError: the checkpoint cannot be run.
        ConfigError: a recorded answer does not fit the vocabulary.
    """
    if options.simulation is not None:
        recordings = options.simulation.recordings
        answers = Answers(info.spec.vocab_size, info.spec.eos_ids, recordings) if layers.is_last else None
        return SimulatedStage(options.simulation.profile, answers, info.n_blocks, info.block_size)
    return Stage(load_layers(options, path, layers, info), info.n_blocks, info.block_size, options.reference)
