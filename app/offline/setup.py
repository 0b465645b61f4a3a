"""From the configuration of an offline command to an engine that answers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from app.composition.pipeline import target_options
from app.composition.speculation import speculator_options as configured_options
from app.config.serve import ServeConfig
from app.inputs.devices import check_cache
from app.inputs.libraries import library_at
from app.inputs.models import check_stages, check_tensor_parallel, model_path, read_checkpoint
from app.inputs.tokenizers import load_tokenizer
from app.offline.flags import n_threads
from app.offline.generator import Generator
from app.speculation.drafter import check_drafter, draft_model_bytes
from app.speculation.heads import model_heads, names_method, with_model
from app.speculation.step_costs import offline_costs
from app.speculation.vocabulary import known_rows
from engine.errors import ConfigError
from engine.loop import Engine
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.info import Target
from engine.target_model.local import LocalTarget
from speculators.grammar import GrammarConfig
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool


def load_target(config: ServeConfig) -> LocalTarget:
    """Return the loaded target; raise ConfigError or UnsupportedModelError if it cannot run here."""
    check_device(config)
    check_cache(config.kv_gib, config.device)
    torch.set_num_threads(n_threads(config))
    path = model_path(config.model, config.revision)
    options = replace(target_options(config), model=str(path), revision=None, beside=draft_model_bytes(config))
    spec, _ = read_checkpoint(path)
    check_stages(spec, options.stages)
    check_tensor_parallel(spec, options)
    target = LocalTarget.load(options, path)
    if target.info.drafter is not None:
        print(f"spectra: drafter: {target.info.drafter}", file=sys.stderr)
    return target


def check_device(config: ServeConfig) -> None:
    if config.device != "cpu" and not torch.cuda.is_available():
        raise ConfigError(f"--device is {config.device}, but torch sees no such device here")
    if config.device != "cpu" and (n_gpus := torch.cuda.device_count()) < config.tensor_parallel:
        raise ConfigError(f"--tensor-parallel is {config.tensor_parallel}, but torch sees {n_gpus} GPUs here")


def sampling(arguments: argparse.Namespace, temperature: float, target: Target) -> SamplingParams:
    return SamplingParams(
        max_tokens=arguments.max_tokens,
        temperature=temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        seed=arguments.seed % 2**64,
        stop_ids=target.info.spec.eos_ids,
        verification=arguments.verification,
    )


def speculator_options(
    config: ServeConfig, methods: Sequence[str], path: Path, target: LocalTarget
) -> SpeculatorOptions:
    """Return the settings of every method for ``target``, whose directory is ``path``.

    The target runs if ``methods`` need its heads or step times and these are not cached.
    """
    spec = target.info.spec
    options = configured_options(config)
    if options.draft_model is not None:
        check_drafter(options.draft_model, path, spec)
    options = replace(
        options,
        retrieval=library_at(config.retrieval, str(path), config.retrieval_namespace),
        step_costs=offline_costs(config, methods, path, target),
        vocabulary=known_rows(path, spec),
        grammar=GrammarConfig(str(path), None, tuple(spec.eos_ids), spec.vocab_size),
        trained=None if target.info.drafter is None else target.info.drafter.method,
    )
    file = None if config.heads is None else Path(config.heads)
    finds_heads = file is not None or names_method(methods)
    return with_model(options, spec, model_heads(path, spec, file, lambda: target) if finds_heads else ())


def generator(arguments: argparse.Namespace, config: ServeConfig, method: str, *, trace: bool = False) -> Generator:
    """Return a generator with new speculators on a newly loaded target."""
    target = load_target(config)
    path = model_path(config.model, config.revision)
    pool = SpeculatorPool(speculator_options(config, [method], path, target))
    size = max(64, arguments.batch_size)
    engine = Engine(target, pool, SchedulerOptions(max_sequences=size, max_waiting=size))
    params = sampling(arguments, arguments.temperature, target)
    return Generator(engine, load_tokenizer(path), params, method, config.draft_nodes, arguments.raw, trace)
