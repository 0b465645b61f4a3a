"""Builds models without a checkpoint: without memory, or with random weights."""

from __future__ import annotations

import copy
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
from engine.model.matrices.experts import put_experts
from engine.model.matrices.linears import is_layer_matrix, put_matrix, quantize
from engine.model.matrices.quantization import check_quantization
from engine.model.matrices.stored import quantize_as

# Building patches ``torch.nn.Module`` and the default dtype for the whole process. Two threads could undo each other's
# patches in the wrong order; every later module of the process would then have no memory.
_BUILDING = threading.Lock()


def empty_model(config: Any, dtype: torch.dtype | None = None) -> Any:
    """Build a causal LM whose parameters have only shapes (the meta device). Its buffers are computed, on the CPU.

    Any thread may call it.

    Args:
        config: Hugging Face config.
        dtype: of the parameters; None: the config's.

    Raises:
        UnsupportedModelError: values of the config do not fit together.
    """
    try:
        with _BUILDING, _shapes_only():
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    except Exception as error:  # of any kind: transformers checks few values before it computes with them
        file = Path(config.name_or_path) / CONFIG
        raise UnsupportedModelError(f"{file} describes no model that can be built: {reason_of(error)}") from error
    put_experts(model)
    return model


@contextmanager
def _shapes_only() -> Iterator[None]:
    """Move parameters that this thread's modules register to the meta device before their memory is used."""
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


def random_model(config: Any, dtype: torch.dtype, device: torch.device, quantization: str | None) -> Any:
    """Build a seeded causal LM on ``device``. Its matrices keep the size of their inputs; its norms are near 1.

    Args:
        config: Hugging Face config, of one layer if the model is to be small.
        dtype: of activations, and of all weights that do not have one byte.
        device: of the weights.
        quantization: as for ``load_shard``.

    Raises:
        ConfigError: ``quantization`` is unknown, or its package is not installed.
    """
    found = check_quantization(quantization, config, device)
    model, generator = empty_model(config, dtype), torch.Generator(device).manual_seed(0)
    for name, parameter in list(model.named_parameters()):
        weight = torch.empty(parameter.shape, dtype=dtype, device=device)
        mean, deviation = (1.0, 0.1) if weight.ndim == 1 else (0.0, weight.shape[-1] ** -0.5)
        weight.normal_(mean, deviation, generator=generator)
        is_matrix = found is not None and not found.widens and is_layer_matrix(model, name)
        if is_matrix and found is not None and found.layout is not None:
            owner = name.removesuffix(".weight")
            model.set_submodule(owner, quantize_as(weight, found.layout).linear(model.get_submodule(owner).bias))
        elif is_matrix and found is not None:
            put_matrix(model, name, *quantize(weight, found, device), found)
        else:
            put_weight(model, name, weight)
    model.tie_weights()
    model.to(device)  # buffers
    return model


def put_weight(model: nn.Module, parameter: str, weight: torch.Tensor) -> None:
    """Replace a parameter by one with values, which needs no gradient."""
    owner, _, name = parameter.rpartition(".")
    module = model.get_submodule(owner)
    setattr(module, name, nn.Parameter(weight, requires_grad=False))
    if isinstance(module, nn.Linear) and weight.ndim == 2:  # may be a rank's part
        module.out_features, module.in_features = weight.shape


def one_layer_config(config: Any, kind: str) -> Any:
    """Return the config of a model that has one layer of type ``kind`` and is otherwise the same."""
    small = copy.deepcopy(config)
    small.num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        small.layer_types = [kind]
    return small
