"""Llama 3's scaling of rotary positions, which a GGUF file holds as a factor for each frequency."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engine.model.gguf.header import GgufHeader
from engine.model.gguf.settings import Metadata

LOW, HIGH, CONTEXT = 1.0, 4.0, 8192  # of every published Llama 3
TOLERANCE = 1e-3  # relative; files hold the factors in fp32


def llama3_rope(header: GgufHeader, data: Metadata, base: float, head_dim: int) -> dict[str, Any]:
    """Hugging Face's parameters for the factors in ``rope_freqs.weight``; empty if all of them are 1.

    Raises:
        UnsupportedModelError: the factors are not those of Llama 3.
    """
    info = header.tensors["rope_freqs.weight"]
    if info.type != 0 or info.shape != (head_dim // 2,):
        raise data.refusal(f"rope_freqs.weight has the shape {[*info.shape]}; it must be F32 [{head_dim // 2}]")
    factors = np.fromfile(header.path, "<f4", head_dim // 2, offset=info.first).astype(np.float64)
    if np.allclose(factors, 1.0, rtol=TOLERANCE):
        return {}
    factor = float(factors.max())
    for context in {data.integer(".rope.scaling.original_context_length", CONTEXT), CONTEXT}:
        if np.allclose(factors, _factors(base, head_dim, factor, context), rtol=TOLERANCE):
            return {
                "rope_type": "llama3",
                "factor": round(factor, 3),
                "low_freq_factor": LOW,
                "high_freq_factor": HIGH,
                "original_max_position_embeddings": context,
            }
    raise data.refusal(
        f"rope_freqs.weight scales positions in another way than Llama 3 (low_freq_factor {LOW:g}, high_freq_factor "
        f"{HIGH:g}, original context {CONTEXT})"
    )


def _factors(base: float, head_dim: int, factor: float, context: int) -> np.ndarray[Any, Any]:
    """What Llama 3 divides each frequency by ``[head_dim / 2]``."""
    frequencies = base ** (-np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((context * frequencies / (2 * math.pi) - LOW) / (HIGH - LOW), 0, 1)
    divided: np.ndarray[Any, Any] = 1 / ((1 - smooth) / factor + smooth)
    return divided
