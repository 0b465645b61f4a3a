"""Whether a model's layers are, or are to be made, int8, and what is needed for it. The layers: ``quantized``."""

from __future__ import annotations

import logging
import warnings
from functools import cache
from typing import Any

from engine.errors import ConfigError, UnsupportedModelError

INT8 = "int8"
THRESHOLD = 6.0  # bitsandbytes' default: activations from here on are outliers


def check_quantization(name: str | None, config: Any) -> float | None:
    """The outlier threshold if a model's decoder layers are, or are to be made, int8; None if they stay as they are.

    Args:
        name: what the user asked for.
        config: the checkpoint's Hugging Face config.

    Raises:
        ConfigError: ``name`` is unknown, or the package is missing.
        UnsupportedModelError: the checkpoint is quantised in another way.
    """
    if name not in (None, INT8):
        raise ConfigError(f"quantization is {name!r}; it must be {INT8} or left out")
    stored = stored_int8(config)
    if name is None and stored is None:
        return None
    bitsandbytes()
    return THRESHOLD if stored is None else float(stored.get("llm_int8_threshold", THRESHOLD))


def stored_int8(config: Any) -> dict[str, Any] | None:
    """How bitsandbytes quantised a checkpoint; None: it is not quantised.

    Raises:
        UnsupportedModelError: something else quantised it, or not to int8.
    """
    given = getattr(config, "quantization_config", None)
    if not given:
        return None
    values: dict[str, Any] = given if isinstance(given, dict) else given.to_dict()
    method = str(getattr(values.get("quant_method"), "value", values.get("quant_method", "bitsandbytes")))
    if method != "bitsandbytes" or not (values.get("load_in_8bit") or values.get("_load_in_8bit")):
        raise UnsupportedModelError(
            f"quantization_config says {method} ({values}): only weights in full precision, which can be made int8 "
            f"(quantization int8), and bitsandbytes' int8 (load_in_8bit) are read"
        )
    return values


@cache
def bitsandbytes() -> Any:
    """The package, which registers its kernels when it is imported.

    Raises:
        ConfigError: it is not installed.
    """
    chatter = logging.getLogger("bitsandbytes.backends.cpu.ops")  # about 4-bit kernels, which are not used here
    chatter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it uses torch.jit
            import bitsandbytes as package
    except ImportError as error:
        raise ConfigError(
            "int8 weights need the package bitsandbytes, which is not installed: pip install 'spectra-serve[int8]'"
        ) from error
    return package
