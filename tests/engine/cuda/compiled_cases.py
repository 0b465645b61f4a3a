"""Launches of every kernel in the shapes of large models, on meta tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from engine.cuda.kernels.attention import Partials
from engine.cuda.kernels.best import best_ids
from engine.cuda.kernels.draw import draw
from engine.cuda.kernels.gemm import INPUT_LEAVES, choose_leaves
from engine.cuda.kernels.norm import rms_norm
from engine.cuda.kernels.rows import embed, move_rows
from engine.cuda.kernels.truncation import Truncation
from engine.cuda.layer import StepOnDevice, run_layer
from engine.cuda.occupancy import count_attention_programs
from engine.cuda.operands import ExpertMlps, Heads, LayerWeights, Matrix, Mlp, Norm, RotaryFrequencies
from engine.cuda.plan.layout import BUCKETS, PlanLayout
from engine.cuda.products import Products
from engine.kv.arena import KVLayer
from engine.model.matrices.groups import ScaleGroups

SLOTS, PLAN_INTS, N_PARTIALS = 4096, 1 << 19, 512
META = torch.device("meta")
BF16, FP32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


def make_meta(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    """Return a tensor without memory."""
    return torch.empty(shape, dtype=dtype, device=META)


make_ints = partial(make_meta, dtype=torch.int32)


def make_meta_matrix(
    n_out: int, n_in: int, dtype: torch.dtype, leaves: int | None = None, has_bias: bool = False
) -> Matrix:
    """Return a matrix ``[n_out, n_in]``; ``leaves`` of its sums, by default those of a matrix with sharded outputs."""
    scales = make_meta(n_out, dtype=FP32) if dtype.itemsize == 1 else None
    bias = make_meta(n_out) if has_bias else None
    return Matrix(make_meta(n_out, n_in, dtype=dtype), scales, bias, leaves or choose_leaves(n_out))


def make_meta_groups(
    n_out: int,
    n_in: int,
    dtype: torch.dtype,
    leaves: int | None = None,
    size: int = 128,
    scale: torch.dtype = FP32,
    has_zeros: bool = False,
) -> Matrix:
    """Return a matrix ``[n_out, n_in]`` with scale groups of ``size`` inputs; ``uint8`` is packed int4."""
    n_groups = -(-n_in // size)
    zeros = make_meta(n_out, n_groups, dtype=torch.int16) if has_zeros else None
    groups = ScaleGroups(make_meta(n_out, n_groups, dtype=scale), zeros, size, n_in)
    width = n_groups * size // (2 if dtype == torch.uint8 else 1)
    return Matrix(make_meta(n_out, width, dtype=dtype), None, None, leaves or choose_leaves(n_out), groups=groups)


MakeMatrix = Callable[..., Matrix]  # ``make_meta_matrix``, ``make_meta_groups``


def make_layer(
    hidden: int,
    width: int,
    heads: Heads,
    dtype: torch.dtype = BF16,
    make: MakeMatrix = make_meta_matrix,
    is_gemma: bool = False,
    has_bias: bool = False,
    n_experts: int = 0,
) -> LayerWeights:
    """Return a decoder layer whose MLP or experts have ``width`` inner numbers, of Llama's kind or of Gemma's."""
    dim = heads.head_dim
    norm, head_norm = Norm(make_meta(hidden), 1e-6, float(is_gemma)), Norm(make_meta(dim), 1e-6, float(is_gemma))
    n_qkv = (heads.n_heads + 2 * heads.n_kv_heads) * dim
    qkv = make_meta_matrix(n_qkv, hidden, dtype, has_bias=True) if has_bias else make(n_qkv, hidden, dtype)
    return LayerWeights(
        heads=heads,
        rotary=RotaryFrequencies(make_meta(dim // 2, dtype=FP32), 1.0),
        activation="gelu_tanh" if is_gemma else "silu",
        before_attention=norm,
        qkv=qkv,
        head_norms=(head_norm, head_norm) if is_gemma else None,
        attention_out=make(hidden, heads.n_heads * dim, dtype, INPUT_LEAVES),
        after_attention=norm if is_gemma else None,
        before_mlp=norm,
        mlp=make_experts(hidden, width, dtype, make, n_experts) if n_experts else make_mlp(hidden, width, dtype, make),
        after_mlp=norm if is_gemma else None,
    )


def make_mlp(hidden: int, width: int, dtype: torch.dtype, make: MakeMatrix) -> Mlp:
    return Mlp(make(2 * width, hidden, dtype), make(hidden, width, dtype, INPUT_LEAVES))


def make_experts(hidden: int, width: int, dtype: torch.dtype, make: MakeMatrix, n_experts: int) -> ExpertMlps:
    """Return experts of which a row has 8, like Qwen3's."""
    router = make_meta_matrix(n_experts, hidden, BF16)
    gate_up, down = make(n_experts * 2 * width, hidden, dtype, 1), make(n_experts * hidden, width, dtype, 1)
    return ExpertMlps(router, gate_up, down, n_experts, 0, n_experts, 8, normalizes=True, rounds_weights=True)


LAYERS = {
    "1B": make_layer(2048, 8192, Heads(32, 8, 64, 1.0)),
    "8B": make_layer(4096, 14336, Heads(32, 8, 128, 1.0)),
    "8B int8": make_layer(4096, 14336, Heads(32, 8, 128, 1.0), torch.int8),
    "70B fp8": make_layer(8192, 28672, Heads(64, 8, 128, 1.0), FP8),
    "Qwen2.5 7B": make_layer(3584, 18944, Heads(28, 4, 128, 1.0), has_bias=True),
    "70B AWQ": make_layer(
        8192, 28672, Heads(64, 8, 128, 1.0), torch.uint8, partial(make_meta_groups, scale=BF16, has_zeros=True)
    ),
    "8B fp8 blocks": make_layer(4096, 12288, Heads(32, 8, 128, 1.0), FP8, make_meta_groups),
    "Qwen3 30B-A3B": make_layer(2048, 768, Heads(32, 4, 128, 1.0), n_experts=128),
    "Qwen3 30B-A3B fp8": make_layer(2048, 768, Heads(32, 4, 128, 1.0), FP8, make_meta_groups, n_experts=128),
    "Gemma 3 4B": make_layer(2560, 10240, Heads(8, 4, 256, 1.0, 1024), is_gemma=True),
}


def run(weights: LayerWeights, n_rows: int, n_pieces: int = 1, n_layers: int = 1, overlaps: bool = False) -> None:
    """Launch the kernels of layers; ``n_pieces`` of the key heads attend one after the other."""
    heads, hidden = weights.heads, make_meta(n_rows, len(weights.attention_out.weight))
    layout, size = PlanLayout(n_rows, (heads.window,)), heads.n_kv_heads // n_pieces
    partials = Partials.empty(N_PARTIALS, heads.n_heads // n_pieces, heads.head_dim, META)
    pieces = tuple(range(first, first + size) for first in range(0, heads.n_kv_heads, size))
    programs = (count_attention_programs(META, size, heads.head_dim),)
    step = StepOnDevice(make_ints(PLAN_INTS), layout, partials, pieces, programs, overlaps)
    arena = KVLayer.of(*(make_meta(SLOTS, heads.n_kv_heads, heads.head_dim) for _ in range(2)))
    for _ in range(n_layers):
        run_layer(weights, hidden, step, arena, Products())


def run_product(matrix: Matrix, n_rows: int) -> None:
    """Launch a product by a matrix with scale groups."""
    assert matrix.groups is not None
    Products().multiply(make_meta(n_rows, matrix.groups.n_in), matrix)


def run_head(vocab: int, dtype: torch.dtype, n_rows: int) -> None:
    """Launch the embedding, the last norm and the product of a head."""
    head, normed = make_meta_matrix(vocab, 4096, dtype), make_meta(n_rows, 4096)
    rms_norm(make_meta(n_rows, 4096), Norm(make_meta(4096), 1e-6), normed)
    embed(make_ints(n_rows), make_meta(vocab, 4096), make_meta(n_rows, 4096))
    Products().multiply(normed, head, make_meta(n_rows, vocab, dtype=FP32))


def run_draws(vocab: int, has_mask: bool, rules: str, n_rows: int = 64) -> None:
    """Launch draws and best ids of fp32 logits; ``rules`` of the truncation, separated by spaces."""
    wide = make_meta(n_rows, dtype=torch.float64)
    made = {"top_k": make_ints(n_rows), "top_p": wide, "log_min_p": wide}
    truncation = Truncation(**{name: made[name] for name in rules.split()}) if rules else None
    mask = make_ints(n_rows, -(-vocab // 32)) if has_mask else None
    scores, temperatures = make_meta(n_rows, vocab, dtype=FP32), make_meta(n_rows, dtype=FP32)
    for n in (8, 64):
        table = make_ints(n_rows, 2 + 2 * n)
        numbers = table.view(FP32)
        draw(scores, temperatures, make_ints(2, n_rows), table[:, 0], mask=mask, truncation=truncation)
        best_ids(scores, n, make_ints(n_rows), table[:, 0], table[:, 2 : 2 + n], numbers[:, 2 + n :], numbers[:, 1])
    draw(scores, temperatures, make_ints(2, n_rows), make_ints(n_rows, 1)[:, 0], mask=mask, truncation=truncation)


def run_moves(n: int) -> None:
    """Launch the moves of ``n`` rows of the KV cache."""
    arena = make_meta(32, 2, SLOTS, 8, 128)
    move_rows(arena[:, 0], arena[:, 1], make_ints(n), make_ints(n))


GROUPED = {
    "int4, groups of 32": make_meta_groups(4096, 4096, torch.uint8, INPUT_LEAVES, 32, BF16),
    "int4, groups of 64 with zeros": make_meta_groups(4096, 4096, torch.uint8, INPUT_LEAVES, 64, BF16, has_zeros=True),
    "int8, groups of 128": make_meta_groups(4096, 4096, torch.int8, INPUT_LEAVES, 128, BF16),
}
RULES = "top_k top_p log_min_p"
HEADS = {"bf16": BF16, "int8": torch.int8, "fp8": FP8}
CASES: dict[str, Callable[[], None]] = {
    **{f"{name}, {n} rows": partial(run, LAYERS[name], n) for name in LAYERS for n in BUCKETS},
    **{
        f"{name}, 16 rows, overlapping launches": partial(run, LAYERS[name], 16, overlaps=True)
        for name in ("8B", "Qwen3 30B-A3B")
    },
    **{f"{name}, {n} rows": partial(run_product, GROUPED[name], n) for name in GROUPED for n in BUCKETS},
    **{f"{name} head, {n} rows": partial(run_head, 128256, HEADS[name], n) for name in HEADS for n in BUCKETS},
    "draws of 128,256": partial(run_draws, 128256, False, ""),
    "truncated and masked draws of 128,256": partial(run_draws, 128256, True, RULES),
    "truncated and masked draws of 262,144": partial(run_draws, 262144, True, RULES),
    "nucleus of 151,936": partial(run_draws, 151936, False, "top_p"),
    **{f"{n} moves": partial(run_moves, n) for n in (1, 1024)},
}
# Triton compiles apart for integers that are 1, or multiples of 16: another kernel might sum in another order. So other
# numbers of rows, layers and pieces must launch the kernels of ``CASES``.
REPEATED: dict[str, Callable[[], None]] = {
    **{f"repeated: {name}, {n} rows": partial(run, LAYERS[name], n) for name in LAYERS for n in (1024, 1536)},
    **{f"repeated: {name}, two layers": partial(run, LAYERS[name], 64, n_layers=2) for name in LAYERS},
    **{f"repeated: {name}, {n} pieces": partial(run, LAYERS[name], 64, n) for name in LAYERS for n in (2, 4)},
    **{f"repeated: bf16 head, {n} rows": partial(run_head, 128256, BF16, n) for n in (1, 2, 17, 513)},
    **{f"repeated: draws, {n} rows": partial(run_draws, 128256, True, RULES, n) for n in (1, 2, 17)},
}
