"""Determines which weights of one byte a model's decoder layers have or get; ``linears`` has the modules."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from engine.errors import ConfigError, UnsupportedModelError, require_extra

if TYPE_CHECKING:  # commands read specs and flags without torch
    import torch

INT8, FP8 = "int8", "fp8"
QUANTIZATIONS = (INT8, FP8)
THRESHOLD = 6.0  # bitsandbytes' default; larger activations are outliers


@dataclass(frozen=True, slots=True)
class Quantization:
    """Format of the matrices of a model's decoder layers.

    Args:
        name: one of ``QUANTIZATIONS``.
        threshold: size of activations that are outliers, if activations are int8 too; None: they keep their dtype.
    """

    name: str
    threshold: float | None = None


def check_quantization(name: str | None, config: Any, device: torch.device | None = None) -> Quantization | None:
    """Return the quantization that a model's decoder layers run in; None: none.

    int8 on a CPU is bitsandbytes', whose activations are int8 too. Elsewhere only weights have one byte.

    Args:
        name: the user's option.
        config: the checkpoint's Hugging Face config.
        device: of the layers; None: they do not run, and no package is needed.

    Raises:
        ConfigError: ``name`` is unknown, or not the checkpoint's, or the package is missing.
        UnsupportedModelError: the checkpoint's quantization is not supported.
    """
    if name not in (None, *QUANTIZATIONS):
        raise ConfigError(f"quantization is {name!r}; it must be {' or '.join(QUANTIZATIONS)}, or left out")
    stored = stored_quantization(config)
    if stored is not None and name not in (None, stored.name):
        raise ConfigError(f"quantization is {name!r}, but the checkpoint's weights are {stored.name}; leave it out")
    found = stored if stored is not None or name is None else Quantization(name, THRESHOLD if name == INT8 else None)
    if found is None or found.name != INT8 or device is None:
        return found
    from engine.device import is_host

    if not is_host(device):
        return Quantization(INT8)
    bitsandbytes()
    return found


def stored_quantization(config: Any) -> Quantization | None:
    """Return a checkpoint's quantization; None: its weights have full precision.

    Raises:
        UnsupportedModelError: the quantization is not supported.
    """
    given = getattr(config, "quantization_config", None)
    if not given:
        return None
    values: dict[str, Any] = given if isinstance(given, dict) else given.to_dict()
    method = str(getattr(values.get("quant_method"), "value", values.get("quant_method", "bitsandbytes")))
    if method == "compressed-tensors":
        _check_compressed(values)
        return Quantization(FP8)
    if method != "bitsandbytes" or not (values.get("load_in_8bit") or values.get("_load_in_8bit")):
        raise UnsupportedModelError(
            f"quantization_config says {method} ({values}): only weights in full precision, which can be made int8 or "
            f"fp8 (quantization), bitsandbytes' int8 (load_in_8bit) and compressed-tensors' fp8 are read"
        )
    return Quantization(INT8, float(values.get("llm_int8_threshold", THRESHOLD)))


def _check_compressed(values: Mapping[str, Any]) -> None:
    """Check that compressed-tensors' weights are fp8 with a scale per output or matrix; ignores activations.

    Raises:
        UnsupportedModelError: they are something else; names the field.
    """
    for name in ("kv_cache_scheme", "sparsity_config", "transform_config"):
        if values.get(name):
            raise UnsupportedModelError(f"quantization_config has {name} ({values[name]}), which is not read")
    groups = values.get("config_groups") or {}
    if not isinstance(groups, Mapping) or not groups:
        raise UnsupportedModelError("quantization_config says compressed-tensors and has no config_groups")
    for name, group in groups.items():
        weights = (group.get("weights") if isinstance(group, Mapping) else None) or {}
        kind = f"{weights.get('type')}{weights.get('num_bits')}"
        if kind != "float8" or not weights.get("symmetric", True):
            raise UnsupportedModelError(
                f"config_groups.{name}.weights of quantization_config are {kind}, symmetric "
                f"{weights.get('symmetric', True)}: of compressed-tensors only symmetric fp8 (float, 8 bits) is read"
            )
        if weights.get("strategy") not in ("tensor", "channel"):
            raise UnsupportedModelError(
                f"config_groups.{name}.weights.strategy of quantization_config is {weights.get('strategy')!r}: fp8 is "
                f"read with one scale for a matrix (tensor) or for each of its outputs (channel), not for blocks"
            )


@cache
def bitsandbytes() -> Any:
    """Import the package, which registers its kernels.

    Raises:
        ConfigError: the package is not installed.
    """
    chatter = logging.getLogger("bitsandbytes.backends.cpu.ops")  # messages on 4-bit kernels, which are not used here
    chatter.setLevel(logging.ERROR)
    require_extra("int8", "quantization int8 on a CPU")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it uses torch.jit
        try:
            import bitsandbytes as package
        except ImportError as error:
            raise ConfigError(f"bitsandbytes is installed, but cannot be imported: {error}") from error
    return package
