"""In which arithmetic the stages of a target run on a GPU."""

from __future__ import annotations

import logging
import os
import shutil
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from engine.drafter.part import NO_DRAFTER, DrafterPart
from engine.drafter.serving.forwards import MakeForwards, ModuleForwards
from engine.errors import ConfigError
from engine.model.scaled import ScaledLinear
from engine.model.shard import ModelShard
from engine.target.options import EXACT, FAST, TargetOptions

if TYPE_CHECKING:
    from engine.cuda.executor import Executor

logger = logging.getLogger(__name__)

CAPABILITY = (9, 0)  # what kernels are compiled for in tests; tiles and memory are a Hopper GPU's, and fp8 needs 8.9


def executors_of(
    options: TargetOptions, shards: Sequence[ModelShard], drafter: Sequence[DrafterPart] = ()
) -> list[Executor | None]:
    """What runs each shard's layers in its place; None: its own modules, with numerics ``fast`` or the oracle, whose
    weights of one byte are multiplied as they are where kernels can run. ``drafter``: each stage's part
    of it; (): there is none.

    Raises:
        ConfigError: numerics are ``exact``, and the kernels cannot run.
        UnsupportedModelError: they lack a part of the model.
    """
    if not is_exact(options):
        multiply_small_weights(options.device, shards)
        return [None] * len(shards)
    from engine.cuda.executor import Executor  # Triton takes a second, and a CPU may lack it

    parts = drafter or [NO_DRAFTER] * len(shards)
    return [Executor(shard, taps=part.taps) for shard, part in zip(shards, parts, strict=True)]


def drafter_forwards(options: TargetOptions) -> MakeForwards:
    """What runs a trained drafter's layers.

    Raises:
        ConfigError: numerics are ``exact``, and the kernels cannot run.
    """
    if not is_exact(options):
        return ModuleForwards
    from engine.cuda.drafter import KernelForwards

    return KernelForwards


def is_exact(options: TargetOptions) -> bool:
    """Whether executors run the layers; asked before weights are loaded, which may take minutes.

    Raises:
        ConfigError: numerics are unknown, or ``exact`` and the kernels cannot run here.
    """
    if options.numerics not in (EXACT, FAST):
        raise ConfigError(f"numerics is {options.numerics!r}; it must be {EXACT} or {FAST}")
    if options.numerics == FAST or options.reference:
        return False
    if not options.device.startswith("cuda"):
        raise ConfigError(f"numerics is {EXACT}, but device is {options.device}: its kernels are for cuda")
    try:
        check_kernels(options.device)
    except ConfigError as error:
        raise ConfigError(f"numerics is {EXACT}: {error}; numerics {FAST} needs none of it") from error
    return True


def multiply_small_weights(device: str, shards: Sequence[ModelShard]) -> None:
    """With numerics ``fast`` on a GPU, let matrices of one byte be multiplied as they are, where kernels can run.

    Elsewhere they are converted at every use, and a log says why.
    """
    found = (module for shard in shards for layer in shard.layers for module in layer.modules())
    if not device.startswith("cuda") or not any(isinstance(module, ScaledLinear) for module in found):
        return
    try:
        check_kernels(device)
    except ConfigError as error:
        logger.warning("weights of one byte are converted at every use, which is slow: %s", error)
        return
    from engine.cuda.small_weights import multiply_by_kernel

    for shard in shards:
        multiply_by_kernel(shard)


def check_kernels(device: str) -> None:
    """Raises ConfigError unless the kernels of ``engine.cuda`` can be built here and run on a GPU."""
    check_triton()
    found = torch.cuda.get_device_capability(device)
    if found < CAPABILITY:
        said, least = (".".join(map(str, one)) for one in (found, CAPABILITY))
        raise ConfigError(
            f"our kernels are made for GPUs of compute capability {least} (H100) or higher; {device} has {said}"
        )


def check_triton() -> None:
    """Raises ConfigError unless Triton and what it builds its launchers with are there."""
    lacking = []
    if find_spec("triton") is None:
        lacking.append("the package triton, as of torch's wheels for CUDA (pip install 'spectra-serve[gpu]')")
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        lacking.append("a C compiler (gcc or clang in PATH, or CC)")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        lacking.append("Python's headers (python3-dev)")
    if lacking:
        raise ConfigError(f"our kernels are compiled here; missing: {'; '.join(lacking)}")
