"""A model of one layer with random weights: what can be measured or tested before a checkpoint is read."""

from __future__ import annotations

from typing import Any

import torch

from engine.model.meta_model import empty_model
from engine.model.quantization import check_quantization
from engine.model.quantized import is_quantized, put_int8, quantize
from engine.model.scaled import DTYPES, put_scaled, quantize_rows


def random_model(config: Any, dtype: torch.dtype, device: torch.device, quantization: str | None) -> Any:
    """A seeded causal LM on ``device``; its matrices keep the size of what they multiply, its norms are near 1.

    Args:
        config: Hugging Face config, of one layer if the model is to be small.
        dtype: of activations, and of all weights that do not have one byte.
        device: where the weights are.
        quantization: as for ``load_shard``.

    Raises:
        ConfigError: ``quantization`` is unknown, or its package is not installed.
    """
    found = check_quantization(quantization, config, device)
    model, generator = empty_model(config, dtype), torch.Generator(device).manual_seed(0)
    for name, parameter in list(model.named_parameters()):
        owner, _, own = name.rpartition(".")
        weight = torch.empty(parameter.shape, dtype=dtype, device=device)
        mean, deviation = (1.0, 0.1) if weight.ndim == 1 else (0.0, weight.shape[-1] ** -0.5)
        weight.normal_(mean, deviation, generator=generator)
        if found is not None and is_quantized(model, name):
            if found.threshold is not None:
                put_int8(model, name, *quantize(weight, device), found.threshold)
            else:
                put_scaled(model, name, *quantize_rows(weight, DTYPES[found.name]))
        else:
            setattr(model.get_submodule(owner), own, torch.nn.Parameter(weight, requires_grad=False))
    model.tie_weights()
    model.to(device)  # buffers
    return model
