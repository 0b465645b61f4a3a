"""Describes a target by its options, and loads its stages, real or simulated."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from engine.drafter.part import DrafterPart
from engine.errors import ConfigError
from engine.grammar.compiler import Grammars
from engine.model.exchange import Ranks
from engine.model.identity import ModelIdentity, model_hash, tokenizer_hash_if_any
from engine.model.loader import load_shard, load_spec
from engine.model.ranges import LayerRange
from engine.model.resolve import revision_of
from engine.model.shard import ModelShard
from engine.model.share import RankShare, check_ranks
from engine.model.spec import ModelSpec
from engine.model.weights.meter import Meter
from engine.parallel.leader import ParallelStage
from engine.simulated.answers import RecordedAnswers
from engine.simulated.profile import SIMULATED
from engine.simulated.stage import SimulatedStage
from engine.stage.base import StageLike
from engine.stage.stage import Stage
from engine.target_model.drafter import describe_drafter, drafter_part, embeds_with_target, read_checkpoint
from engine.target_model.info import TargetInfo, plan_cache, positions, simulated_spec
from engine.target_model.numerics import drafter_forwards, executor_of, resolve_dtype, with_numerics
from engine.target_model.options import EXACT, LAYERS, TargetOptions


def target_spec(options: TargetOptions, path: Path) -> ModelSpec:
    """Return the spec of a checkpoint directory; a simulated target has at least one layer for every stage.

    Raises:
        UnsupportedModelError: the checkpoint cannot be run.
    """
    return simulated_spec(load_spec(path), options)


def describe_target(options: TargetOptions, path: Path) -> TargetInfo:
    """Return the description of the target for a scheduler.

    Raises:
        UnsupportedModelError: the checkpoint cannot be run.
        ConfigError: an option is wrong.
    """
    spec = target_spec(options, path)
    dtype = resolve_dtype(options.dtype, spec, options.device)
    if options.tensor_parallel != 1:
        is_exact = options.resolution is not None and options.resolution.numerics == EXACT
        check_ranks(options.tensor_parallel, spec, is_exact)
    drafter = None
    if options.drafter is not None:
        if options.simulation is not None:
            raise ConfigError("drafter is set, but a simulated target has no states that a trained drafter could read")
        drafter = describe_drafter(read_checkpoint(options.drafter, spec), options.drafter, dtype)
    return replace(plan_cache(spec, options, dtype.itemsize, drafter), identity=_identity(options, path, dtype))


def _identity(options: TargetOptions, path: Path, dtype: torch.dtype) -> ModelIdentity:
    tokenizer, revision = tokenizer_hash_if_any(path), revision_of(path)
    simulation = options.simulation
    if simulation is not None:
        weights = hashlib.sha256(repr(simulation.profile).encode() + simulation.recordings).hexdigest()[:32]
        return ModelIdentity(weights, tokenizer, revision, SIMULATED)
    numbers = [str(dtype).removeprefix("torch."), *filter(None, [options.quantization])]
    if options.resolution is not None and options.resolution.numerics != LAYERS:
        numbers.append(options.resolution.numerics)
    return ModelIdentity(model_hash(path), tokenizer, revision, "+".join(numbers))


def load_layers(
    options: TargetOptions,
    path: Path,
    layers: LayerRange,
    info: TargetInfo,
    embeds: bool = False,
    meter: Meter | None = None,
    ranks: Ranks | None = None,
) -> ModelShard:
    """Load a stage's layers in the dtype, on the device and with the quantization of the options.

    ``embeds``: whether a stage that is not the first embeds tokens as well. ``meter`` counts the bytes. ``ranks`` of
    the stage load their shares.

    Raises:
        UnsupportedModelError: the checkpoint cannot be run.
        ConfigError: an option is wrong.
    """
    shard = load_shard(
        path,
        layers,
        dtype=resolve_dtype(options.dtype, info.spec, options.device),
        device=torch.device(options.device),
        n_positions=positions(info),
        quantization=options.quantization,
        embeds=embeds,
        meter=meter,
        ranks=ranks,
    )
    shard.pack_linears()
    return shard


def load_parts(
    options: TargetOptions,
    path: Path,
    ranges: Sequence[LayerRange],
    info: TargetInfo,
    meter: Meter | None = None,
    ranks: Ranks | None = None,
) -> list[tuple[ModelShard, DrafterPart]]:
    """Load the layers of some stages and their parts of the drafter; ``meter`` counts the target's bytes.

    ``ranks`` of a stage load their shares, and only the leader has a part of the drafter.

    Raises:
        UnsupportedModelError: a checkpoint cannot be run.
        ConfigError: an option is wrong, or the drafter does not fit this target.
    """
    forwards = drafter_forwards(options)
    leads = ranks is None or ranks.share.rank == 0
    drafter = read_checkpoint(options.drafter, info.spec) if options.drafter is not None and leads else None
    embeds = drafter is not None and embeds_with_target(drafter.spec)
    parts = []
    for layers in ranges:
        shard = load_layers(options, path, layers, info, embeds and layers.is_last, meter, ranks)
        parts.append((shard, drafter_part(drafter, options.drafter, shard, info, forwards)))
    return parts


def load_stage(
    options: TargetOptions,
    path: Path,
    layers: LayerRange,
    info: TargetInfo,
    meter: Meter | None = None,
    rank: int = 0,
) -> StageLike:
    """Load one stage of a pipeline, or one of its ranks, ready for its first step; ``meter`` counts the bytes.

    Ranks must be connected first, which the returned ``ParallelStage`` of rank 0 does.

    Raises:
        UnsupportedModelError: the checkpoint cannot be run.
        ConfigError: an option is wrong, or a recorded answer does not fit the vocabulary.
    """
    options = with_numerics(options, path)
    if options.simulation is not None:
        recordings = options.simulation.recordings
        answers = RecordedAnswers(info.spec.vocab_size, info.spec.eos_ids, recordings) if layers.is_last else None
        return SimulatedStage(options.simulation.profile, answers, info.n_blocks, info.block_size)
    share = RankShare(rank, options.tensor_parallel)
    ranks = None if share.size == 1 else Ranks(share, info.spec)
    [(shard, drafter)] = load_parts(options, path, [layers], info, meter, ranks)
    assert options.resolution is not None, "its numerics are resolved"
    # Ranks that record other taps than their leader could replay a step that it runs launch by launch.
    taps = () if info.drafter is None else [tap - layers.first for tap in info.drafter.taps if tap in layers.numbers]
    executor, grammars = executor_of(options.resolution, shard, taps), grammars_of(path, info.spec)
    stage = Stage(shard, info.n_blocks, info.block_size, drafter, grammars, executor)
    if ranks is None or executor is None:
        stage.warm_up()
    return stage if ranks is None or rank > 0 else ParallelStage(stage)


def grammars_of(path: Path, spec: ModelSpec) -> Grammars:
    """Return a compiler of grammars for a checkpoint's tokenizer, which the first grammar loads."""
    file = path / "tokenizer.json"
    return Grammars(lambda: file.read_text(encoding="utf-8"), spec.eos_ids, spec.vocab_size)


def whole_range(spec: ModelSpec) -> LayerRange:
    return LayerRange(0, spec.n_layers, spec.n_layers)
