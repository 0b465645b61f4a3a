"""Kernels equal Hugging Face's modules; rows of the arena are written and moved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma3TextConfig, LlamaConfig, Qwen3Config
from transformers.models.gemma3.modeling_gemma3 import (
    Gemma3RMSNorm,
    Gemma3RotaryEmbedding,
    Gemma3TextScaledWordEmbedding,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, Qwen3RotaryEmbedding

from engine.cuda.kernels.norm import rms_norm
from engine.cuda.kernels.rope import rotate_and_write
from engine.cuda.kernels.rows import embed, move_rows
from engine.cuda.operands import Heads, Norm, RotaryFrequencies
from tests.engine.cuda.kernels.rows import poisoned

POSITIONS = torch.tensor([0, 1, 77, 4095, 131071], dtype=torch.int32)
SLOTS = torch.tensor([5, 1, 9, 2, 0], dtype=torch.int32)
LLAMA3 = {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0}
CASES: dict[str, tuple[Any, type[nn.Module] | None]] = {
    "llama": (LlamaConfig(head_dim=20, rope_parameters={"rope_theta": 1e4, "rope_type": "default"}), None),
    "llama3": (LlamaConfig(head_dim=32, rope_parameters=LLAMA3 | {"original_max_position_embeddings": 8192}), None),
    "yarn": (Qwen3Config(head_dim=16, rope_parameters=YARN | {"original_max_position_embeddings": 4096}), Qwen3RMSNorm),
    "gemma": (Gemma3TextConfig(head_dim=32, num_hidden_layers=6), Gemma3RMSNorm),
}


def rotary_of(config: Any) -> tuple[Any, RotaryFrequencies, tuple[Any, ...]]:
    """The family's module, the kernel's frequencies, and more arguments of the module's forward."""
    if isinstance(config, Gemma3TextConfig):
        rotary = Gemma3RotaryEmbedding(config)
        return rotary, RotaryFrequencies(rotary.sliding_attention_inv_freq, 1.0), ("sliding_attention",)
    made = Qwen3RotaryEmbedding(config) if isinstance(config, Qwen3Config) else LlamaRotaryEmbedding(config)
    return made, RotaryFrequencies(made.inv_freq, made.attention_scaling), ()


def norm_of(module: Any) -> Norm:
    """The kernel's norm with the weight of a module."""
    return Norm(module.weight, 1e-5, 1.0 if isinstance(module, Gemma3RMSNorm) else 0.0)


@pytest.mark.matrix
@pytest.mark.parametrize(("case", "dtype"), [
    ("llama", torch.float32), ("llama3", torch.float16), ("yarn", torch.float32), ("gemma", torch.float16),
])  # fmt: skip
@torch.inference_mode()
def test_rope_equals_the_modules(case: str, dtype: torch.dtype) -> None:
    config, norm = CASES[case]
    heads, kv_heads, head_dim = 6, 2, config.head_dim
    rotary, frequencies, kind = rotary_of(config)
    n, width = len(POSITIONS), head_dim * (heads + 2 * kv_heads)
    qkv = torch.randn(n, width).to(dtype)
    norms = [None, None] if norm is None else [norm(head_dim, eps=1e-5).to(dtype) for _ in range(2)]
    for one in norms:
        if one is not None:
            nn.init.normal_(one.weight)
    q_out = poisoned(n, heads * head_dim, dtype=dtype)
    arenas = [poisoned(12, kv_heads, head_dim, dtype=dtype) for _ in range(2)]
    pair = None if norm is None else (norm_of(norms[0]), norm_of(norms[1]))
    rotate_and_write(qkv, POSITIONS, SLOTS, frequencies, Heads(heads, kv_heads, head_dim, 1.0), pair, q_out, *arenas)
    parts = qkv.split([head_dim * heads, head_dim * kv_heads, head_dim * kv_heads], -1)
    q, k, v = (part.view(1, n, -1, head_dim) for part in parts)
    q, k = (x if one is None else one(x) for x, one in zip((q, k), norms, strict=True))
    cos, sin = rotary(q, POSITIONS[None], *kind)
    turned = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
    expected_q, expected_k = (x.transpose(1, 2)[0] for x in turned)
    found_q, found_k = q_out.view(n, heads, head_dim), arenas[0][SLOTS.long()]
    for found, expected in ((found_q, expected_q), (found_k, expected_k)):
        step = torch.finfo(dtype).eps * float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=0, atol=step if dtype == torch.float16 else 3 * step)
        if dtype == torch.float16:  # rounded where the modules round, or many would differ
            assert float((found != expected).float().mean()) < 0.02
    assert torch.equal(arenas[1][SLOTS.long()], v[0])
    others = [slot for slot in range(12) if slot not in SLOTS.tolist()]
    assert all(bool(arena[others].isnan().all()) for arena in arenas)


@pytest.mark.cluster
@pytest.mark.parametrize("layers", [(), (3,)], ids=["one layer", "all layers"])
def test_moved_rows_may_be_sources_of_other_moves(layers: tuple[int, ...]) -> None:
    arena = torch.randn(*layers, 2, 40, 2, 12)  # keys of a layer, then its values
    sources = torch.tensor([5, 6, 8, 9, 20, 31, 0], dtype=torch.int32)
    targets = torch.tensor([4, 5, 6, 8, 31, 20, 0], dtype=torch.int32)  # down by one, a swap, and one to itself
    expected = arena.clone()
    expected[..., targets, :, :] = arena[..., sources, :, :]
    keys, values = arena.unbind(-4)
    move_rows(keys, values, sources, targets)
    assert torch.equal(arena, expected)


STEPS = {torch.float32: 4, torch.float16: 1}  # last bits that may differ, by the order of a sum or by exp


def assert_near(found: Tensor, expected: Tensor) -> None:
    """At most some steps of their dtype apart, and in fp16 rarely that."""
    resolution = torch.finfo(found.dtype).eps
    torch.testing.assert_close(found, expected, rtol=STEPS[found.dtype] * resolution, atol=resolution * 2**-10)
    if found.dtype == torch.float16:  # rounded where the module rounds, or many would differ
        assert float((found != expected).float().mean()) < 0.02


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("width", "kind", "dtype"),
    [(100, LlamaRMSNorm, torch.float32), (1024, LlamaRMSNorm, torch.float16), (100, Gemma3RMSNorm, torch.float16)],
)
@torch.inference_mode()
def test_norms_equal_the_modules(width: int, kind: type[nn.Module], dtype: torch.dtype) -> None:
    norm = kind(width, eps=1e-5).to(dtype)
    nn.init.normal_(norm.weight)
    x, stream = (torch.randn(4, width) * 3).to(dtype), torch.randn(4, width).to(dtype)
    out = poisoned(4, width, dtype=dtype)
    rms_norm(x, norm_of(norm), out)
    assert_near(out, norm(x))
    expected = stream + out
    rms_norm(x, norm_of(norm), stream, residual=stream)
    assert torch.equal(stream, expected)


@pytest.mark.parametrize("dtype", [
    pytest.param(torch.float32, marks=pytest.mark.cluster), pytest.param(torch.float16, marks=pytest.mark.matrix),
])  # fmt: skip
@torch.inference_mode()
def test_embeddings_equal_the_modules(dtype: torch.dtype) -> None:
    table = Gemma3TextScaledWordEmbedding(50, 100, 0, embed_scale=100**0.5 + 0.1).to(dtype)
    tokens, out = torch.tensor([3, 0, 49, 3], dtype=torch.int32), poisoned(4, 100, dtype=dtype)
    embed(tokens, table.weight, out, 100**0.5 + 0.1)
    assert torch.equal(out, table(tokens))
    embed(tokens, table.weight, out)
    assert torch.equal(out, table.weight[tokens])
