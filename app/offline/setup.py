"""From the flags of an offline command to an engine that answers."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

from app.config.checks import drafter_settings, stage_memory
from app.inputs.devices import AUTO, check_cache
from app.inputs.libraries import library_at
from app.inputs.models import drafter_path, model_path, read_checkpoint
from app.inputs.tokenizers import load_tokenizer
from app.offline.flags import draft_nodes
from app.offline.generator import Generator
from app.speculation.drafter import draft_model_bytes, offline_drafter
from app.speculation.heads import offline_heads, with_model
from app.speculation.step_costs import offline_costs
from app.speculation.vocabulary import known_rows
from engine.drafter.settings import DrafterSettings
from engine.errors import ConfigError
from engine.loop import Engine
from engine.model.spec import ModelSpec
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.local import LocalTarget
from engine.target_model.options import GIB, TargetOptions
from speculators.grammar import GrammarConfig
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool


def load_target(arguments: argparse.Namespace) -> LocalTarget:
    """The target the flags describe.

    Raises:
        ConfigError: a flag is wrong.
        UnsupportedModelError: the checkpoint cannot be run.
    """
    check_device(arguments)
    check_cache(arguments.kv_gib, arguments.device)
    path = model_path(arguments.model)
    spec, _ = read_checkpoint(path)
    options = TargetOptions(
        model=str(path),
        stages=arguments.stages,
        dtype=arguments.dtype,
        device=arguments.device,
        kv_bytes=None if arguments.kv_gib == AUTO else int(arguments.kv_gib * GIB),
        quantization=arguments.quantization,
        numerics=arguments.numerics,
        split=arguments.layer_split,
        stage_memory=stage_memory(arguments.stage_memory_gib),
        cost_folder="layer-costs",
        drafter=trained_drafter(arguments),
        beside=draft_model_bytes(arguments),
    )
    check_stages(spec, arguments.stages)
    target = LocalTarget.load(options, path)
    if target.info.drafter is not None:
        print(f"spectra: drafter: {target.info.drafter}", file=sys.stderr)
    return target


def trained_drafter(arguments: argparse.Namespace) -> DrafterSettings | None:
    """The drafter that the flags name, if the command has them.

    Raises:
        ConfigError: a flag is wrong.
    """
    given = {name: getattr(arguments, f"drafter_{name}", None) for name in ("depth", "beam")}
    options = {name: value for name, value in given.items() if value is not None}
    path = getattr(arguments, "drafter", None)
    path = None if path is None else drafter_path(path)
    return drafter_settings(path, getattr(arguments, "drafter_layers", None), options)


def check_device(arguments: argparse.Namespace) -> None:
    """Raises ConfigError if torch does not see the device."""
    if arguments.device != "cpu" and not torch.cuda.is_available():
        raise ConfigError(f"--device is {arguments.device}, but torch sees no such device here")


def check_stages(spec: ModelSpec, stages: int) -> None:
    """Raises ConfigError if the model has not a layer for each stage."""
    if not 1 <= stages <= spec.n_layers:
        raise ConfigError(f"--stages is {stages}; it must be 1 to {spec.n_layers}, the model's number of layers")


def sampling(arguments: argparse.Namespace, target: LocalTarget) -> SamplingParams:
    """Sampling parameters of every turn; the flags have been checked."""
    return SamplingParams(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        seed=arguments.seed % 2**64,
        stop_ids=target.info.spec.eos_ids,
        verification=arguments.verification,
    )


def speculator_options(
    arguments: argparse.Namespace, path: Path, spec: ModelSpec, target: LocalTarget
) -> SpeculatorOptions:
    """Settings of every method for ``target``, whose directory is ``path``; it may be run to find its heads.

    Raises:
        ConfigError: a flag is wrong; the message names it.
    """
    return with_model(
        replace(
            offline_drafter(arguments, path, spec),
            retrieval=library_at(arguments.retrieval, str(path), arguments.retrieval_namespace),
            step_costs=offline_costs(arguments, path, target),
            vocabulary=known_rows(path, spec),
            grammar=GrammarConfig(str(path), None, tuple(spec.eos_ids), spec.vocab_size),
            trained=None if target.info.drafter is None else target.info.drafter.method,
        ),
        spec,
        offline_heads(arguments, path, target),
    )


def generator(arguments: argparse.Namespace, method: str, *, trace: bool = False) -> Generator:
    """A generator with fresh speculators on a freshly loaded target."""
    target = load_target(arguments)
    path = model_path(arguments.model)
    pool = SpeculatorPool(speculator_options(arguments, path, target.info.spec, target))
    size = max(64, arguments.batch_size)
    engine = Engine(target, pool, SchedulerOptions(max_sequences=size, max_waiting=size))
    tokenizer = load_tokenizer(path)
    params, n_nodes = sampling(arguments, target), draft_nodes(arguments)
    return Generator(engine, tokenizer, params, method, n_nodes, arguments.raw, trace)
