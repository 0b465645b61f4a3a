"""Models without memory, which their users fill in tensor by tensor."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from engine.errors import UnsupportedModelError
from engine.model.checkpoint_files import CONFIG, reason_of

_BUILDING = threading.Lock()
"""Building patches ``torch.nn.Module`` and the default dtype for the whole process. Two threads at it at once can undo
each other's patches in the wrong order, after which every module of the process is born without memory."""


def empty_model(config: Any, dtype: torch.dtype | None = None) -> Any:
    """A causal LM whose parameters have shapes only (the meta device); its buffers are computed, on the CPU.

    Any thread may call it.

    Args:
        config: Hugging Face config.
        dtype: of the parameters; the config's without one.

    Raises:
        UnsupportedModelError: values of the config do not fit together.
    """
    try:
        with _BUILDING, _shapes_only():
            return AutoModelForCausalLM.from_config(config, dtype=dtype)
    except Exception as error:  # of any kind: transformers checks few values before it computes with them
        file = Path(config.name_or_path) / CONFIG
        raise UnsupportedModelError(f"{file} describes no model that can be built: {reason_of(error)}") from error


@contextmanager
def _shapes_only() -> Iterator[None]:
    """Parameters that this thread's modules register lose their memory before it is used."""
    register, builder = nn.Module.register_parameter, threading.get_ident()

    def register_shape(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None and threading.get_ident() == builder:
            module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)

    nn.Module.register_parameter = register_shape  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
