"""Determines in which format a model's decoder layers have or get their matrices."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from engine.errors import ConfigError, UnsupportedModelError, require_extra
from engine.model.matrices.layout import WeightLayout, read_layout

if TYPE_CHECKING:  # commands read specs and flags without torch
    import torch

INT8, FP8, INT4 = "int8", "fp8", "int4"
QUANTIZATIONS = (INT8, FP8)  # that weights in full precision can get
SCALES = "SCB"  # bitsandbytes' name of the scales, also in checkpoints
BITSANDBYTES = WeightLayout(8, scale=(SCALES,), divisor=127.0)
THRESHOLD = 6.0  # bitsandbytes' default; larger activations are outliers


@dataclass(frozen=True, slots=True)
class Quantization:
    """Format of the matrices of a model's decoder layers.

    Args:
        name: ``INT8``, ``FP8`` or ``INT4``.
        threshold: size of activations that are outliers, if activations are int8 too; None: they keep their dtype.
        layout: of the checkpoint's matrices; None: they are in full precision, or bitsandbytes' int8 on a CPU.
        widens: whether stored numbers become weights in full precision when they are loaded.
    """

    name: str
    threshold: float | None = None
    layout: WeightLayout | None = None
    widens: bool = False


def check_quantization(name: str | None, config: Any, device: torch.device | None = None) -> Quantization | None:
    """Return the quantization that a model's decoder layers run in; None: none.

    int8 on a CPU is bitsandbytes', whose activations are int8 too. Elsewhere only weights are small. Scales of groups
    are for a GPU's kernels; on a CPU such weights are widened.

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
    if found is None or device is None:
        return found
    from engine.device import is_host

    if found.layout is not None and found.layout.has_order and not is_host(device):
        raise UnsupportedModelError(
            "quantization_config has act-order (desc_act or actorder): such weights are read on a CPU alone; a "
            "checkpoint without it would do"
        )
    if found.layout is not None:
        is_wide = is_host(device) and (found.layout.is_grouped or not found.layout.is_float)
        return Quantization(found.name, layout=found.layout, widens=is_wide)
    if found.name == INT8 and not is_host(device):
        return Quantization(INT8, layout=BITSANDBYTES if stored is not None else None)
    if found.name == INT8:
        bitsandbytes()
    return found


def stored_quantization(config: Any) -> Quantization | None:
    """Return a checkpoint's quantization; None: its weights have full precision.

    Raises:
        UnsupportedModelError: the quantization is not supported.
    """
    values = quantization_values(config)
    if not values:
        return None
    is_8bit = values.get("load_in_8bit") or values.get("_load_in_8bit")
    method = values.get("quant_method", "bitsandbytes" if is_8bit else None)
    if str(getattr(method, "value", method)) != "bitsandbytes":
        layout = read_layout(values)
        return None if layout is None else Quantization(layout.name, layout=layout)
    if not is_8bit:
        raise UnsupportedModelError(
            "quantization_config says bitsandbytes without load_in_8bit: of its formats only int8 is read; the "
            "checkpoint in full precision, fp8, AWQ or GPTQ would do"
        )
    return Quantization(INT8, float(values.get("llm_int8_threshold", THRESHOLD)))


def quantization_values(config: Any) -> dict[str, Any]:
    """Return a checkpoint's ``quantization_config``, also by its former name; empty if it has none."""
    given = getattr(config, "quantization_config", None) or getattr(config, "compression_config", None) or {}
    values: dict[str, Any] = given if isinstance(given, dict) else given.to_dict()
    return values


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
