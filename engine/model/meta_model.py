"""Models without memory, which their users fill in tensor by tensor."""

from __future__ import annotations

import threading
from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import AutoModelForCausalLM

_BUILDING = threading.Lock()
"""Building patches ``torch.nn.Module`` and the default dtype for the whole process. Two threads at it at once can undo
each other's patches in the wrong order, after which every module of the process is born without memory."""


def empty_model(config: Any, dtype: torch.dtype | None = None) -> Any:
    """A causal LM whose parameters have shapes only (the meta device); its buffers are computed, on the CPU.

    Any thread may call it.

    Args:
        config: Hugging Face config.
        dtype: of the parameters; the config's without one.
    """
    with _BUILDING, init_empty_weights(include_buffers=False):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)
