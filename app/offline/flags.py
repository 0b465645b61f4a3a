"""Flags that the offline commands share, and their checks; loads nothing heavy."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, get_args

from app.config.flags import add_field, add_group, add_help_all, config_of_flags, value_of
from app.config.method_fields import SECTIONS
from app.config.serve import ServeConfig
from app.inputs.default_model import DRAFTER_METHOD, NO_DRAFTER
from app.inputs.devices import default_threads, device_named, has_cuda_device
from app.inputs.models import check_model
from engine.errors import ConfigError
from engine.sampling.params import VerificationRule
from speculators.methods import method_names

MODEL = (
    *("revision", "dtype", "device", "quantization", "numerics", "stages"),
    *("tensor_parallel", "kv_gib", "stage_memory_gib", "layer_split", "threads"),
)
SPECULATION = (
    *("max_nodes", "drafter", "drafter_options", "draft_model", "heads", "retrieval", "retrieval_namespace"),
    *SECTIONS,
)


def add_model(parser: argparse.ArgumentParser, flag: str = "--model", batch_size: int = 1) -> None:
    """Add the fields of the model, which ``flag`` names, and ``--batch-size`` with its default."""
    add_field(parser, "model", flag)
    add_group(parser, "model", None, MODEL)
    says = "prompts at once (default: %(default)s)"
    parser.add_argument("--batch-size", type=int, default=batch_size, metavar="B", help=says)
    add_help_all(parser)
    parser.set_defaults(config_fields=("model", *MODEL))


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the requests, without the temperature."""
    add_max_tokens(parser, 128, "most tokens per turn")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="nucleus sampling (default: 1)")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="0: no limit (default: 0)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of sampling (default: 0)")
    says = "both are lossless; coupled gives the same text for the same seed (default: coupled)"
    parser.add_argument("--verification", choices=get_args(VerificationRule), default="coupled", help=says)


def add_max_tokens(parser: Any, default: int, scope: str) -> None:
    parser.add_argument("--max-tokens", type=int, default=default, metavar="N", help=f"{scope} (default: {default})")
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("--max-new-tokens", dest="max_tokens", type=int, **hidden)  # an older spelling


def add_speculation(parser: argparse.ArgumentParser) -> None:
    add_group(parser, "speculation", None, SPECULATION)
    parser.set_defaults(config_fields=("model", *MODEL, *SPECULATION))


def checked_config(arguments: argparse.Namespace, temperature: float, *methods: str) -> ServeConfig:
    """Return the configuration of an offline command, whose process has the GPU that parts of a server would reserve.

    Raises SpectraError, which names the flag, if a value is out of range, or a method or model cannot exist.
    """
    device = device_named(value_of(arguments, "device"))
    gpus = 0.0 if device == "cpu" else 1.0
    config = config_of_flags(
        argparse.Namespace(**vars(arguments) | {"device": device}),
        arguments.config_fields,
        stage_gpus=gpus,
        speculator_actors=1,
        speculator_gpus=gpus,
        retrieval="none",
    )
    if config.stages > 1 and config.tensor_parallel > 1:
        raise ConfigError(
            f"--stages is {config.stages}, but --tensor-parallel is {config.tensor_parallel}: this command runs the "
            "ranks of one stage; leave out one of the two, or use `spectra serve`"
        )
    if not 0 <= temperature <= 2:
        raise ConfigError(f"--temperature is {temperature}; it must be 0 to 2")
    top_p, top_k = getattr(arguments, "top_p", 1.0), getattr(arguments, "top_k", 0)
    if not 0 < top_p <= 1:
        raise ConfigError(f"--top-p is {top_p}; it must be above 0 and at most 1")
    if top_k < 0:
        raise ConfigError(f"--top-k is {top_k}; it must be 0 (no limit) or more")
    check_least(arguments, {"limit": 1, "max_tokens": 1, "batch_size": 1})
    drafts = {part for method in methods for part in method.split("+")}
    if config.drafter is None and drafts.isdisjoint({"auto", DRAFTER_METHOD}):
        config = config.model_copy(update={"drafter": NO_DRAFTER})
    for method in methods:
        method_names(method)
    check_model(config.model, config.revision)
    if device != "cpu" and not has_cuda_device():
        raise ConfigError(f"--device is {device}, but no CUDA device was found on this machine")
    return config


def n_threads(config: ServeConfig) -> int:
    """Return the threads of this process, which runs all stages, or the first of their ranks."""
    return config.threads or default_threads(config.tensor_parallel)


def check_least(arguments: object, least: Mapping[str, int]) -> None:
    """Raise ConfigError if a flag that was given is below its least value; the message names it."""
    for name, smallest in least.items():
        value = getattr(arguments, name, None)
        if value is not None and value < smallest:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be at least {smallest}")
