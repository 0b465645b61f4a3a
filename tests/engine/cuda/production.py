"""Compiles the kernels for sm_90, without a GPU, as large models launch them, and prints the results as JSON.

Arguments: names of the cases to compile; all without any. It needs a process of its own without ``TRITON_INTERPRET``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from engine.cuda.kernels.attention import PROGRAMS, Heads, Partials
from engine.cuda.kernels.best import best_ids
from engine.cuda.kernels.draw import draw
from engine.cuda.kernels.embed import embed
from engine.cuda.kernels.gemm import linear
from engine.cuda.kernels.moves import move_rows
from engine.cuda.kernels.norm import rms_norm
from engine.cuda.kernels.truncation import Truncation
from engine.cuda.layer import StepOnDevice, Stream, run_layer
from engine.cuda.plan.layout import Layout
from engine.cuda.weights import LayerWeights, Matrix, Norm
from engine.kv.arena import KVLayer

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
ROWS, SLOTS = 64, 4096
FP8 = torch.float8_e4m3fn


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def ints(*shape: int) -> Tensor:
    return meta(*shape, dtype=torch.int32)


def matrix(n_out: int, n_in: int, dtype: torch.dtype, has_bias: bool = False) -> Matrix:
    scales = meta(n_out, dtype=torch.float32) if dtype.itemsize == 1 else None
    return Matrix(meta(n_out, n_in, dtype=dtype), scales, meta(n_out) if has_bias else None)


def layer(
    hidden: int, width: int, heads: Heads, dtype: torch.dtype, is_gemma: bool = False, has_bias: bool = False
) -> LayerWeights:
    dim = heads.head_dim
    norm, head_norm = Norm(meta(hidden), 1e-6, float(is_gemma)), Norm(meta(dim), 1e-6, float(is_gemma))
    return LayerWeights(
        heads=heads,
        frequencies=meta(dim // 2, dtype=torch.float32),
        rope_scaling=1.0,
        activation="gelu_tanh" if is_gemma else "silu",
        before_attention=norm,
        qkv=matrix((heads.n_heads + 2 * heads.n_kv_heads) * dim, hidden, dtype, has_bias),
        q_norm=head_norm if is_gemma else None,
        k_norm=head_norm if is_gemma else None,
        attention_out=matrix(hidden, heads.n_heads * dim, dtype),
        behind_attention=norm if is_gemma else None,
        before_mlp=norm,
        gate_up=matrix(2 * width, hidden, dtype),
        down=matrix(hidden, width, dtype),
        behind_mlp=norm if is_gemma else None,
    )


LAYERS = {
    "1B": layer(2048, 8192, Heads(32, 8, 64, 1.0), torch.bfloat16),  # all products in parts
    "8B": layer(4096, 14336, Heads(32, 8, 128, 1.0), torch.bfloat16),
    "8B, int8": layer(4096, 14336, Heads(32, 8, 128, 1.0), torch.int8),
    "70B, fp8": layer(8192, 28672, Heads(64, 8, 128, 1.0), FP8),
    "Qwen2.5 7B": layer(3584, 18944, Heads(28, 4, 128, 1.0), torch.bfloat16, has_bias=True),
    "Gemma 3 4B": layer(2560, 10240, Heads(8, 4, 256, 1.0, 1024), torch.bfloat16, is_gemma=True),
}


def run(weights: LayerWeights, n_rows: int = ROWS, n_pieces: int = 1, n_layers: int = 1) -> None:
    heads, hidden = weights.heads, weights.attention_out.weight.shape[0]
    layout, size = Layout(n_rows, (heads.window,)), heads.n_kv_heads // n_pieces
    partials = Partials.empty(512, heads.n_heads // n_pieces, heads.head_dim, torch.device("meta"))
    pieces = tuple(range(first, first + size) for first in range(0, heads.n_kv_heads, size))
    step = StepOnDevice(ints(1 << 19), layout, partials, pieces, (PROGRAMS // size,))
    arena = KVLayer.of(*(meta(SLOTS, heads.n_kv_heads, heads.head_dim) for _ in range(2)))
    stream = Stream.into(weights, meta(n_rows, hidden))
    for _ in range(n_layers):
        stream = run_layer(weights, stream, step, arena)
    stream.sum()


def run_head(vocab: int, dtype: torch.dtype, n_rows: int = ROWS) -> None:
    head, normed = matrix(vocab, 4096, dtype), meta(n_rows, 4096)
    rms_norm(meta(n_rows, 4096), meta(4096), normed, 1e-6)
    embed(ints(n_rows), meta(vocab, 4096), meta(n_rows, 4096))
    linear(normed, head.weight, meta(n_rows, vocab, dtype=torch.float32), scales=head.scales)


def run_draws(vocab: int, logits: torch.dtype, has_mask: bool, rules: str, n_rows: int = ROWS) -> None:
    wide = meta(n_rows, dtype=torch.float64)
    made = {"top_k": ints(n_rows), "top_p": wide, "log_min_p": wide}
    truncation = Truncation(**{name: made[name] for name in rules.split()}) if rules else None
    mask = ints(n_rows, -(-vocab // 32)) if has_mask else None
    scores, temperatures = meta(n_rows, vocab, dtype=logits), meta(n_rows, dtype=torch.float32)
    for n in (8, 64):
        table = ints(n_rows, 2 + 2 * n)
        numbers = table.view(torch.float32)
        draw(scores, temperatures, ints(2, n_rows), table[:, 0], mask=mask, truncation=truncation)
        best_ids(scores, n, ints(n_rows), table[:, 0], table[:, 2 : 2 + n], numbers[:, 2 + n :], numbers[:, 1])
    draw(scores, temperatures, ints(2, n_rows), ints(n_rows, 1)[:, 0], mask=mask, truncation=truncation)


def run_moves(n: int) -> None:
    arena = meta(32, 2, SLOTS, 8, 128)
    move_rows(arena[:, 0], arena[:, 1], ints(n), ints(n))


FP32, ALL = torch.float32, "top_k top_p log_min_p"
CASES: dict[str, Callable[[], None]] = {
    **{name: partial(run, weights) for name, weights in LAYERS.items()},
    **{f"head, {dtype}": partial(run_head, 128256, dtype) for dtype in (torch.bfloat16, torch.int8, FP8)},
    "draws of 128,256": partial(run_draws, 128256, FP32, False, ""),
    "truncated and masked draws of 128,256": partial(run_draws, 128256, FP32, True, ALL),
    "truncated and masked draws of 262,144": partial(run_draws, 262144, FP32, True, ALL),
    "nucleus of 151,936": partial(run_draws, 151936, FP32, False, "top_p"),
    **{f"{n} moves": partial(run_moves, n) for n in (1, 1024)},
}
# Triton compiles apart for integers that are 1, or multiples of 16: another kernel might sum in another order. So other
# numbers of rows, layers and pieces must launch the same kernels.
AGAIN = {
    **{f"again: {name}, {n} rows": partial(run, LAYERS[name], n) for name in LAYERS for n in (128, 384, 1536)},
    **{f"again: {name}, two layers": partial(run, LAYERS[name], n_layers=2) for name in LAYERS},
    **{f"again: {name}, {n} pieces": partial(run, LAYERS[name], 64, n) for name in LAYERS for n in (2, 4)},
    **{f"again: head, {n} rows": partial(run_head, 128256, torch.bfloat16, n) for n in (1, 2, 16, 513)},
    **{f"again: draws, {n} rows": partial(run_draws, 128256, FP32, True, ALL, n) for n in (1, 2, 17)},
}


def compile_kernels(cases: dict[str, Callable[[], None]]) -> list[dict[str, Any]]:
    """Every different kernel that the cases launch on meta tensors; nothing runs."""
    hopper = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
    )
    driver.set_active(hopper)
    found: dict[str, dict[str, Any]] = {}
    case, run = "", JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        if kernel.hash not in found:
            found[kernel.hash] = {"kernel": self.__name__, "case": case} | properties_of(kernel)
        return kernel

    JITFunction.run = compile_only
    for case, launch in cases.items():  # noqa: B007  # ``compile_only`` reads it
        launch()
    return list(found.values())


def properties_of(kernel: Any) -> dict[str, Any]:
    """Bytes of shared memory of a program and of stack of a thread, and which instructions a kernel has."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    assert found is not None, usage
    return {
        "stack": sum(map(int, found.groups())),  # spilled registers, and arrays
        "shared": kernel.metadata.shared,
        "wgmma": "wgmma.mma" in kernel.asm["ptx"],  # multiplies with Hopper's instruction
        "mma_sync": "mma.sync" in kernel.asm["ptx"],  # or with an older one
        "fuses": bool(kernel.metadata.enable_fp_fusion),  # a product and a sum may become one operation, rounded once
    }


if __name__ == "__main__":
    known = CASES | AGAIN
    print(json.dumps(compile_kernels({name: known[name] for name in sys.argv[1:] or known})))
