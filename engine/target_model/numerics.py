"""Chooses the dtype of a target's stages, and their numerics on a GPU.

``resolve`` decides for a process before it reads weights. All stages of a pipeline run the weakest numerics of them
(``weakest``, ``adopt``).
"""

from __future__ import annotations

import logging
import os
import shutil
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engine.drafter.part import NO_DRAFTER, DrafterPart
from engine.drafter.serving.forwards import MakeForwards, ModuleForwards
from engine.errors import ConfigError
from engine.model.build import one_layer_config, random_model
from engine.model.loader import load_config
from engine.model.matrices.quantization import check_quantization
from engine.model.shard import ModelShard
from engine.model.spec import ModelSpec, read_spec
from engine.target_model.options import (
    AUTO,
    EXACT,
    FAST,
    LAYERS,
    NUMERICS,
    Resolution,
    TargetOptions,
    dtype_name,
    is_cuda,
)

if TYPE_CHECKING:  # need Triton
    from engine.cuda.executor import Executor
    from engine.cuda.self_test import Verdict

logger = logging.getLogger(__name__)

EXACT_CAPABILITY = (9, 0)  # tiles and memory fit a Hopper GPU
FAST_CAPABILITY = (8, 0)  # bf16 on tensor cores
TEST_VOCABULARY = 256  # of the tested model, whose layer has the target's sizes
TEST_EXPERTS = 16  # of the layers to test, if the model has more


def resolve_dtype(name: str | None, spec: ModelSpec, device: str) -> torch.dtype:
    """Return the dtype of activations; without a name float32 on a CPU, else the checkpoint's.

    Raises:
        ConfigError: ``name`` is not supported.
    """
    dtype: torch.dtype = getattr(torch, dtype_name(name, spec.dtype, device))
    return dtype


def with_numerics(options: TargetOptions, path: Path) -> TargetOptions:
    """Return options with resolved numerics, and log them on a GPU, where the self-test takes about 2 seconds.

    Args:
        options: of the target; returned unchanged if they are resolved.
        path: checkpoint directory; only the config is read.

    Raises:
        ConfigError: numerics are unknown, or ``exact`` cannot run here.
    """
    if options.resolution is not None:
        return options
    found = find_numerics(options, path)
    if found.numerics == LAYERS and found.obstacle:
        is_byte = check_quantization(options.quantization, load_config(path)) is not None
        more = "; weights of one byte are converted at every use" if is_byte else ""
        logger.warning("numerics: %s%s", found, more)
    elif found.numerics != LAYERS:
        logger.info("numerics: %s", found)
    return replace(options, resolution=found)


def find_numerics(options: TargetOptions, path: Path) -> Resolution:
    """Return the numerics that this process can run; arguments and errors as for ``with_numerics``."""
    if options.numerics not in NUMERICS:
        raise ConfigError(f"numerics is {options.numerics!r}; it must be {', '.join(NUMERICS[:-1])} or {NUMERICS[-1]}")
    if options.simulation is not None or options.numerics == LAYERS:
        return Resolution(LAYERS)
    if not is_cuda(options.device):
        if options.numerics == EXACT:
            raise ConfigError(f"numerics is {EXACT}, but device is {options.device}: its kernels are for cuda")
        return Resolution(LAYERS)
    config = load_config(path)
    return resolve(options.numerics, options.device, lambda is_exact: _test(options, config, is_exact))


def resolve(requested: str, device: str, self_test: Callable[[bool], Verdict]) -> Resolution:
    """Return the best numerics that a process can run on a GPU: exact, fast, or Hugging Face's layers.

    Args:
        requested: ``AUTO``, ``EXACT`` or ``FAST``.
        device: the GPU.
        self_test: runs the self-test; True adds the checks for ``exact``.

    Raises:
        ConfigError: ``EXACT`` is requested and cannot run.
    """
    found = _resolve(requested, device, self_test)
    if requested == EXACT and found.numerics != EXACT:
        raise ConfigError(f"numerics is {EXACT}, but {found.obstacle}; with {AUTO} the stages run what is possible")
    return found


def _resolve(requested: str, device: str, self_test: Callable[[bool], Verdict]) -> Resolution:
    capability, lacking = torch.cuda.get_device_capability(device), missing_tools()
    if lacking or capability < FAST_CAPABILITY:
        return Resolution(LAYERS, lacking or _too_old(device, capability, FAST_CAPABILITY))
    too_old = _too_old(device, capability, EXACT_CAPABILITY) if capability < EXACT_CAPABILITY else ""
    verdict = self_test(requested != FAST and not too_old)
    if verdict.kernel_fault:
        return Resolution(LAYERS, f"the self-test failed: {verdict.kernel_fault}", seconds=verdict.seconds)
    if requested == FAST:
        return Resolution(FAST, seconds=verdict.seconds)
    obstacle = too_old or (verdict.order_fault and f"the self-test failed: {verdict.order_fault}")
    return Resolution(FAST if obstacle else EXACT, obstacle, verdict.row_tile, verdict.seconds)


def _too_old(device: str, *capabilities: tuple[int, int]) -> str:
    found, least = (".".join(map(str, one)) for one in capabilities)
    return f"{device} has compute capability {found}; it must be {least} or higher"


def missing_tools() -> str:
    """Describe which of Triton, a C compiler and Python's headers are missing for our kernels; "": none."""
    lacking = []
    if find_spec("triton") is None:
        lacking.append("the package triton, as of torch's wheels for CUDA (pip install 'spectra-serve[gpu]')")
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        lacking.append("a C compiler (gcc or clang in PATH, or CC)")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        lacking.append("Python's headers (python3-dev)")
    return f"our kernels are compiled here and lack {'; '.join(lacking)}" if lacking else ""


def _test(options: TargetOptions, config: Any, is_exact: bool) -> Verdict:
    from engine.cuda.self_test import self_test  # importing Triton takes a second, and a CPU may lack it

    return self_test(layers_to_test(options, config), is_exact)


def layers_to_test(options: TargetOptions, config: Any) -> Iterator[Any]:
    """Yield a model of one layer on the device for each type of layer."""
    spec = read_spec(config, ())
    dtype, device = resolve_dtype(options.dtype, spec, options.device), torch.device(options.device)
    for kind in sorted(set(spec.layer_types)):
        small = one_layer_config(config, kind)
        small.vocab_size = min(small.vocab_size, TEST_VOCABULARY)
        if spec.n_experts:
            small.num_local_experts = min(spec.n_experts, max(TEST_EXPERTS, spec.experts_per_token))
        small.pad_token_id = None
        yield random_model(small, dtype, device, options.quantization)


def weakest(resolutions: Iterable[Resolution]) -> str:
    """Return the numerics that all stages of a pipeline can run."""
    return max((one.numerics for one in resolutions), key=(EXACT, FAST, LAYERS).index)


def adopt(options: TargetOptions, planned: str) -> TargetOptions:
    """Return a stage's options, whose numerics are resolved, with the pipeline's numerics.

    Raises:
        ConfigError: this stage cannot run them.
    """
    own = options.resolution
    assert own is not None, "with_numerics comes before"
    if weakest((own, Resolution(planned))) != planned:
        raise ConfigError(f"the pipeline began with numerics {planned}, but here they are {own}; start it anew")
    return replace(options, resolution=replace(own, numerics=planned))


def executors_of(
    options: TargetOptions, shards: Sequence[ModelShard], drafter: Sequence[DrafterPart] = ()
) -> list[Executor | None]:
    """The executor of each shard, ``drafter`` being its part of one; None: the shard's own modules run.

    Raises:
        UnsupportedModelError: kernels lack a part of the model.
    """
    assert options.resolution is not None, "with_numerics comes before"
    parts = drafter or [NO_DRAFTER] * len(shards)
    return [executor_of(options.resolution, shard, part.taps) for shard, part in zip(shards, parts, strict=True)]


def executor_of(resolution: Resolution, shard: ModelShard, taps: Collection[int] = ()) -> Executor | None:
    """Return the executor of one shard; ``taps`` are the local layers that a trained drafter reads."""
    if resolution.numerics == LAYERS:
        return None
    from engine.cuda.executor import Executor
    from engine.cuda.products import Products

    is_exact = resolution.numerics == EXACT
    products = Products(row_tile=resolution.row_tile) if is_exact else Products(by_library=True)
    return Executor(shard, products, taps=taps)


def drafter_forwards(options: TargetOptions) -> MakeForwards:
    if not options.has_executor:
        return ModuleForwards
    from engine.cuda.drafter import KernelForwards

    return KernelForwards
