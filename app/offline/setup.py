"""From the flags of an offline command to an engine that answers."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from app.config.split import stage_memory
from app.demo.paths import DEMO, DEMO_TARGET
from app.inputs.cache import cache_folder
from app.inputs.prompts import Question, read_questions
from app.inputs.tokenizers import load_tokenizer
from app.offline.generator import Generator
from app.speculation.flags import speculator_options
from engine.errors import ConfigError
from engine.loop import Engine
from engine.model.loader import load_spec
from engine.model.resolve import resolve
from engine.model.spec import ModelSpec
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target.local import LocalTarget
from engine.target.options import GIB, TargetOptions
from speculators.pool import SpeculatorPool


def questions(arguments: argparse.Namespace) -> list[Question]:
    """What the flags ask for.

    Raises:
        ConfigError: the prompt file is wrong.
    """
    if arguments.prompt is not None:
        return [Question([arguments.prompt])]
    return read_questions(arguments.prompts, arguments.limit)


def model_path(model: str) -> Path:
    """Directory of a model as commands take it."""
    return DEMO_TARGET if model == DEMO else resolve(model)


def load_target(arguments: argparse.Namespace) -> LocalTarget:
    """The target the flags describe.

    Raises:
        ConfigError: a flag is wrong.
        UnsupportedModelError: the checkpoint cannot be run.
    """
    path = model_path(arguments.model)
    options = TargetOptions(
        model=str(path),
        stages=arguments.stages,
        dtype=arguments.dtype,
        device=arguments.device,
        kv_bytes=int(arguments.kv_gib * GIB),
        quantization=arguments.quantization,
        split=arguments.layer_split,
        stage_memory=stage_memory(arguments.stage_memory_gib),
        cost_folder=str(cache_folder() / "layer-costs"),
    )
    check_stages(load_spec(path), arguments.stages)
    return LocalTarget.load(options, path)


def check_stages(spec: ModelSpec, stages: int) -> None:
    """Raises ConfigError if the model has not a layer for each stage."""
    if not 1 <= stages <= spec.n_layers:
        raise ConfigError(f"--stages is {stages}; it must be 1 to {spec.n_layers}, the model's number of layers")


def check_flags(arguments: argparse.Namespace) -> None:
    """Raises ConfigError if a value is out of range; the message names the flag. Comes before anything loads."""
    is_cuda = arguments.device.partition(":")[0] == "cuda"
    limit = 1 if arguments.limit is None else arguments.limit
    checks = {
        "--limit": (limit >= 1, arguments.limit, "at least 1"),
        "--threads": (arguments.threads >= 1, arguments.threads, "at least 1"),
        "--stages": (arguments.stages >= 1, arguments.stages, "at least 1"),
        "--kv-gib": (0 < arguments.kv_gib < float("inf"), arguments.kv_gib, "above 0"),
        "--device": (is_cuda or arguments.device == "cpu", arguments.device, "cpu or cuda"),
        "--max-new-tokens": (arguments.max_new_tokens >= 1, arguments.max_new_tokens, "at least 1"),
        "--temperature": (0 <= arguments.temperature <= 2, arguments.temperature, "0 to 2"),
        "--top-p": (0 < arguments.top_p <= 1, arguments.top_p, "above 0, at most 1"),
        "--top-k": (arguments.top_k >= 0, arguments.top_k, "0 (no limit) or more"),
        "--batch-size": (arguments.batch_size >= 1, arguments.batch_size, "at least 1"),
        "--max-nodes": (arguments.max_nodes >= 0, arguments.max_nodes, "0 or more"),
    }
    for flag, (is_right, value, right) in checks.items():
        if not is_right:
            raise ConfigError(f"{flag} is {value}; it must be {right}")
    if is_cuda and not torch.cuda.is_available():
        raise ConfigError(f"--device is {arguments.device}, but torch sees no such device here")


def sampling(arguments: argparse.Namespace, target: LocalTarget) -> SamplingParams:
    """Sampling parameters of every turn; the flags have been checked."""
    return SamplingParams(
        max_tokens=arguments.max_new_tokens,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        seed=arguments.seed % 2**64,
        stop_ids=target.info.spec.eos_ids,
        verification=arguments.verification,
    )


def generator(arguments: argparse.Namespace, method: str) -> Generator:
    """A generator with fresh speculators on a freshly loaded target."""
    target = load_target(arguments)
    path = model_path(arguments.model)
    pool = SpeculatorPool(speculator_options(arguments, path, target.info.spec, target))
    size = max(64, arguments.batch_size)
    engine = Engine(target, pool, SchedulerOptions(max_sequences=size, max_waiting=size))
    tokenizer = load_tokenizer(path)
    return Generator(engine, tokenizer, sampling(arguments, target), method, arguments.max_nodes, arguments.raw)
