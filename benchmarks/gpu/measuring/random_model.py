"""Targets of known geometry with random weights, made where they run: nothing is downloaded or read from a disk."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from benchmarks.gpu.measuring.geometry import SPREAD, Geometry
from engine.model.meta_model import empty_model
from engine.model.quantized import is_quantized
from engine.model.scaled import ScaledLinear


def config(geometry: Geometry, max_positions: int = 131072) -> LlamaConfig:
    """The Hugging Face config of a geometry."""
    return LlamaConfig(
        hidden_size=geometry.hidden,
        intermediate_size=geometry.intermediate,
        num_hidden_layers=geometry.n_layers,
        num_attention_heads=geometry.n_heads,
        num_key_value_heads=geometry.n_kv_heads,
        head_dim=geometry.head_dim,
        vocab_size=geometry.vocab,
        max_position_embeddings=max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=None,  # texts have the length that was asked for
    )


def random_model(
    geometry: Geometry, device: torch.device, dtype: torch.dtype, seed: int = 0, int8: bool = False
) -> Any:
    """A Hugging Face causal LM on ``device``, its matrices normal with ``SPREAD`` and its norms 1.

    The same seed gives the same weights on the same kind of device. With ``int8`` the decoder layers' matrices are
    random bytes with one scale per output, never in full precision anywhere.
    """
    model = empty_model(config(geometry), dtype)
    random = torch.Generator(device).manual_seed(seed)
    for name, parameter in list(model.named_parameters()):
        owner, _, last = name.rpartition(".")
        if int8 and is_quantized(model, name):
            model.set_submodule(owner, _random_int8(parameter.shape, device, random))
            continue
        value = torch.empty(parameter.shape, dtype=dtype, device=device)
        value = value.normal_(0, SPREAD, generator=random) if value.dim() > 1 else value.fill_(1)
        setattr(model.get_submodule(owner), last, nn.Parameter(value, requires_grad=False))
    rotary = model.model.rotary_emb
    for name, buffer in rotary.named_buffers(recurse=False):
        rotary._buffers[name] = buffer.to(device)
    return model.eval()


def _random_int8(shape: torch.Size, device: torch.device, random: torch.Generator) -> ScaledLinear:
    """A layer whose weights have the standard deviation ``SPREAD``."""
    weight: Tensor = torch.randint(-127, 128, shape, dtype=torch.int8, device=device, generator=random)
    scales = torch.full((shape[0],), SPREAD * 3**0.5 / 127, dtype=torch.float32, device=device)
    return ScaledLinear(weight, scales, None)
