"""Queries, keys and values on their way to attention: Hugging Face's modules, and the arena's rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma3TextConfig, LlamaConfig, Qwen3Config
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm, Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, Qwen3RotaryEmbedding

from engine.cuda.kernels.moves import MOST_MOVES, move_rows
from engine.cuda.kernels.rope import rope_write
from tests.engine.cuda.kernels.rows import assert_rows_alike, poisoned

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


def rotary_of(config: Any) -> tuple[Any, Tensor, float, tuple[Any, ...]]:
    """The family's module, what the kernel is told of it, and what its forward takes beside positions."""
    if isinstance(config, Gemma3TextConfig):
        rotary = Gemma3RotaryEmbedding(config)
        return rotary, rotary.sliding_attention_inv_freq, 1.0, ("sliding_attention",)
    made = Qwen3RotaryEmbedding(config) if isinstance(config, Qwen3Config) else LlamaRotaryEmbedding(config)
    return made, made.inv_freq, made.attention_scaling, ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_rope_equals_the_modules(case: str, dtype: torch.dtype) -> None:
    config, norm = CASES[case]
    heads, kv_heads, head_dim = 6, 2, config.head_dim
    rotary, inv_freq, scaling, kind = rotary_of(config)
    n, width = len(POSITIONS), head_dim * (heads + 2 * kv_heads)
    qkv = torch.randn(n, width).to(dtype)
    norms = [None, None] if norm is None else [norm(head_dim, eps=1e-5).to(dtype) for _ in range(2)]
    for one in norms:
        if one is not None:
            nn.init.normal_(one.weight)
    q_out = poisoned(n, heads * head_dim, dtype=dtype)
    arenas = [poisoned(12, kv_heads, head_dim, dtype=dtype) for _ in range(2)]
    rope_write(
        qkv, POSITIONS, SLOTS, inv_freq, q_out, *arenas,
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, eps=1e-5,
        q_norm=None if norms[0] is None else norms[0].weight, k_norm=None if norms[1] is None else norms[1].weight,
        offset=1.0 if norm is Gemma3RMSNorm else 0.0, attention_scaling=scaling,
    )  # fmt: skip
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


def test_a_row_does_not_depend_on_others() -> None:
    qkv, positions = torch.randn(130, 5 * 8), torch.randint(0, 9999, (130,), dtype=torch.int32)
    inv_freq, weight = 1e4 ** -torch.arange(0, 1, 0.25), torch.randn(8)

    def compute(rows: Tensor) -> Tensor:
        n = len(rows)
        q, k, v = poisoned(n, 3 * 8), poisoned(n, 1, 8), poisoned(n, 1, 8)
        slots = torch.arange(n, dtype=torch.int32)
        rope_write(
            qkv[rows], positions[rows], slots, inv_freq, q, k, v,
            heads=3, kv_heads=1, head_dim=8, q_norm=weight, k_norm=weight,
        )  # fmt: skip
        return torch.cat((q, k[:, 0], v[:, 0]), -1)

    assert_rows_alike(compute)


@pytest.mark.parametrize("layers", [(), (3,)], ids=["one layer", "all layers"])
def test_moved_rows_may_be_sources_of_other_moves(layers: tuple[int, ...]) -> None:
    arena = torch.randn(*layers, 2, 40, 2, 12)  # keys and values of a layer lie one behind the other
    sources = torch.tensor([5, 6, 8, 9, 20, 31, 0], dtype=torch.int32)
    targets = torch.tensor([4, 5, 6, 8, 31, 20, 0], dtype=torch.int32)  # down by one, a swap, and one to itself
    expected = arena.clone()
    expected[..., targets, :, :] = arena[..., sources, :, :]
    keys, values = arena.unbind(-4)
    move_rows(keys, values, sources, targets)
    assert torch.equal(arena, expected)


def test_no_rows_move_and_too_many_do_not() -> None:
    arena = torch.randn(4, 1, 2)
    before, none = arena.clone(), torch.empty(0, dtype=torch.int32)
    move_rows(arena, arena, none, none)
    assert torch.equal(arena, before)
    many = torch.zeros(MOST_MOVES + 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="1025 rows are to move; at most 1024"):
        move_rows(arena, arena, many, many)
