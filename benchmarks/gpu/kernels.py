"""Does every kernel compute what fp64 says, and each row for itself?

Kernels run on random rows of 8B and write to memory full of NaNs. "error" is in steps of the output's dtype at a row's
largest number. A row is unequal where any of its bits differs from the same row among 512, when it runs alone, among
others, in another place, or once more. Products of 70B are checked as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.measuring.clock import measure_throughput
from benchmarks.gpu.measuring.models import LLAMA_8B, LLAMA_70B, shrink
from benchmarks.gpu.measuring.products import check_products, count_unequal, relative_error
from benchmarks.gpu.setting import GpuSetting, MeasurementPart, Row
from engine.cuda.kernels.activation import apply_gate
from engine.cuda.kernels.best import best_ids
from engine.cuda.kernels.draw import draw
from engine.cuda.kernels.norm import rms_norm
from engine.cuda.kernels.rope import rotate_and_write
from engine.cuda.kernels.rows import embed, move_rows
from engine.cuda.kernels.truncation import Truncation
from engine.cuda.operands import Heads, Norm, RotaryFrequencies
from engine.sampling.draw import draw_tokens
from engine.sampling.noise import gumbel_keys
from engine.sampling.params import SamplingParams
from engine.sampling.processors import process

EPS = 1e-5
ROWS, ROWS_TINY, FEW = 512, 20, (1, 8, 63, 64, 65)
MOVED = 64  # rows of an arena
ALLOWED = {torch.float32: 500.0, torch.bfloat16: 4.0}  # cos and sin of large angles are computed in fp32

DRAWN_ROWS, VOCAB_TINY, N_BEST = (1, 64), 300, 32
TEMPERATURE, TOP_K, TOP_P, MIN_P = 0.8, 100, 0.9, 0.01
PARAMS = {
    "greedy": SamplingParams(),
    "temperature": SamplingParams(temperature=TEMPERATURE),
    "top-k, top-p, min-p": SamplingParams(temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P, min_p=MIN_P),
}

Case = tuple[str, Callable[[Tensor], Tensor], Tensor]  # name, what is written for rows [n], fp64 of all rows


def check_rows(setting: GpuSetting) -> Iterator[Row]:
    """Yield a row for each kernel: its error, and the rows whose bits depend on other rows."""
    n, allowed = ROWS_TINY if setting.is_tiny else ROWS, ALLOWED[setting.dtype]
    order = torch.arange(n, device=setting.device)
    for name, result, expected in RowKernels(setting, n).cases():
        among = result(order)
        subsets = [order[:few] for few in FEW if few < n] + [order.roll(37)[: n // 4], order[-1:], order]
        unequal = sum(count_unequal(result(subset), among[subset]) for subset in subsets)
        error, nans = relative_error(among.nan_to_num(), expected), int(among.isnan().sum())
        ok = not unequal and not nans and error <= allowed
        yield {"kernel": name, "error": error, "allowed": allowed, "NaNs": nans, "rows unequal": unequal, "ok": ok}


class RowKernels:
    """Cases with ``n`` rows of 8B."""

    def __init__(self, setting: GpuSetting, n: int) -> None:
        self._setting, self._n, self._geometry = setting, n, shrink(setting, LLAMA_8B)
        self._random = torch.Generator(setting.device).manual_seed(n)

    def cases(self) -> Iterator[Case]:
        """Make one case after the other."""
        yield from (self._norm(offset, adds) for offset in (0.0, 1.0) for adds in (False, True))
        yield from map(self._gated, ("silu", "gelu_tanh"))
        yield from (self._embed(), self._rope(has_norm=False), self._rope(has_norm=True), self._moves())

    def _normal(self, *shape: int) -> Tensor:
        made = torch.empty(shape, dtype=self._setting.dtype, device=self._setting.device)
        return made.normal_(generator=self._random)

    def _nans(self, *shape: int) -> Tensor:
        return torch.full(shape, torch.nan, dtype=self._setting.dtype, device=self._setting.device)

    def _norm(self, offset: float, adds: bool) -> Case:
        width = self._geometry.hidden
        x, stream, weight = self._normal(self._n, width), self._normal(self._n, width), self._normal(width)

        def result(rows: Tensor) -> Tensor:
            out = self._nans(len(rows), width)
            rms_norm(x[rows], Norm(weight, EPS, offset), out, residual=stream[rows] if adds else None)
            return out

        expected = functional.rms_norm(x.double(), (width,), offset + weight.double(), EPS)
        name = f"norm, offset {offset:.0f}{', residual' if adds else ''}"
        return name, result, expected + stream.double() if adds else expected

    def _gated(self, kind: str) -> Case:
        x, width = self._normal(self._n, 2 * self._geometry.intermediate), self._geometry.intermediate

        def result(rows: Tensor) -> Tensor:
            out = self._nans(len(rows), width)
            apply_gate(x[rows], out, kind)
            return out

        gate, up = x.double().chunk(2, -1)
        activated = functional.silu(gate) if kind == "silu" else functional.gelu(gate, approximate="tanh")
        return f"gated, {kind}", result, up * activated

    def _embed(self) -> Case:
        table = self._normal(1000, self._geometry.hidden)
        tokens = torch.randint(0, 1000, (self._n,), generator=self._random, device=table.device).int()

        def result(rows: Tensor) -> Tensor:
            out = self._nans(len(rows), self._geometry.hidden)
            embed(tokens[rows], table, out, 2.0)
            return out

        return "embed", result, 2.0 * table[tokens].double()

    def _rope(self, has_norm: bool) -> Case:
        g = self._geometry
        heads, dim = g.n_heads + 2 * g.n_kv_heads, g.head_dim
        qkv = self._normal(self._n, heads * dim)
        positions = torch.randint(0, 131072, (self._n,), generator=self._random, device=qkv.device).int()
        frequencies = 5e5 ** -(torch.arange(0, dim, 2, device=qkv.device) / dim)
        rotary, sizes = RotaryFrequencies(frequencies, 1.0), Heads(g.n_heads, g.n_kv_heads, dim, 1.0)
        norms = (Norm(self._normal(dim), EPS), Norm(self._normal(dim), EPS)) if has_norm else None

        def result(rows: Tensor) -> Tensor:
            n = len(rows)
            q, k, v = self._nans(n, g.n_heads * dim), *(self._nans(n, g.n_kv_heads, dim) for _ in range(2))
            slots = torch.arange(n - 1, -1, -1, dtype=torch.int32, device=q.device)
            rotate_and_write(qkv[rows], positions[rows], slots, rotary, sizes, norms, q, k, v)
            return torch.cat((q, k.flip(0).flatten(1), v.flip(0).flatten(1)), -1)

        parts = torch.split(qkv.double().view(self._n, heads, dim), [g.n_heads, g.n_kv_heads, g.n_kv_heads], 1)
        angles = (positions.float()[:, None] * frequencies).double()  # in fp32, as in Hugging Face's modules
        cos, sin, rotated = angles.cos()[:, None], angles.sin()[:, None], list[Tensor]()
        for part, norm in zip(parts, norms or (None, None), strict=False):  # values are neither normalised nor rotated
            x = part if norm is None else functional.rms_norm(part, (dim,), norm.weight.double(), EPS)
            first, second = x.chunk(2, -1)
            rotated.append(torch.cat((first * cos - second * sin, second * cos + first * sin), -1))
        expected = torch.cat([one.flatten(1) for one in (*rotated, parts[2])], -1)
        return f"rope{', norms' if has_norm else ''}", result, expected

    def _moves(self) -> Case:  # a whole arena moves by one; the numbers of rows do not matter
        arena = self._normal(2, 2, MOVED, self._geometry.n_kv_heads, self._geometry.head_dim)
        sources = torch.arange(1, MOVED, dtype=torch.int32, device=arena.device)

        def result(rows: Tensor) -> Tensor:
            moved = arena.clone()
            move_rows(moved[:, 0], moved[:, 1], sources, sources - 1)
            return moved[..., : MOVED - 1, :, :].flatten()[None].expand(len(rows), -1)

        return "moves", result, arena[..., 1:, :, :].double().flatten()[None].expand(self._n, -1)


def check_draws(setting: GpuSetting) -> Iterator[Row]:
    """Yield a row for each way of drawing and number of rows: rows unlike a CPU's, and the time.

    Logits are rounded to bf16, so that many are equal.
    """
    for n in (1, 4) if setting.is_tiny else DRAWN_ROWS:
        shape = n, VOCAB_TINY if setting.is_tiny else LLAMA_8B.vocab
        logits = torch.from_numpy(np.random.default_rng(0).normal(0, 3, shape).astype(np.float32))
        logits = logits.to(torch.bfloat16).float()
        for name, params in PARAMS.items():
            yield _check_draw(setting, name, logits, params)
        yield _check_best(setting, logits)


def _check_draw(setting: GpuSetting, name: str, host: Tensor, params: SamplingParams) -> Row:
    n, device, truncation = len(host), setting.device, None
    keys = [(7, 0, row) for row in range(n)]
    expected = draw_tokens(process(host, [params] * n, [None] * n), [None] * n if params.is_greedy else keys)
    logits, noise = host.to(device), torch.from_numpy(gumbel_keys(keys)).to(device)
    tokens, temperatures = logits.new_full((n,), -1, dtype=torch.int32), logits.new_full((n,), params.temperature)
    if params.top_k:
        rules = (TOP_K, torch.int32), (TOP_P, torch.float64), (math.log(MIN_P), torch.float64)
        truncation = Truncation(*(torch.full((n,), rule, dtype=dtype, device=device) for rule, dtype in rules))
    seconds = measure_throughput(setting, lambda: draw(logits, temperatures, noise, tokens, truncation=truncation), 10)
    unlike = sum(found != other for found, other in zip(tokens.tolist(), expected, strict=True))
    return {"draw": name, "rows": n, "us": seconds * 1e6, "unlike a CPU's": unlike, "ok": not unlike}


def _check_best(setting: GpuSetting, host: Tensor) -> Row:
    logits, n = host.to(setting.device), len(host)
    ids, asked = logits.new_full((n, N_BEST), -1, dtype=torch.int32), logits.new_zeros(n, dtype=torch.int32)
    found = logits.new_empty(n, 1 + N_BEST)
    seconds = measure_throughput(
        setting, lambda: best_ids(logits, N_BEST, asked, asked, ids, found[:, 1:], found[:, 0]), 10
    )
    expected, order = host.double().log_softmax(-1), host.argsort(dim=-1, descending=True, stable=True)[:, :N_BEST]
    unlike = int((ids.cpu() != order).any(-1).sum())
    error = float((found[:, 1:].cpu() - expected.gather(-1, order)).abs().max())
    ok = not unlike and error < 1e-4
    return {"draw": f"{N_BEST} best ids", "rows": n, "us": seconds * 1e6, "unlike a CPU's": unlike, "ok": ok}


PARTS = (
    MeasurementPart(
        "rows", 1, "Do norm, activation, embedding, rotation and moves compute what fp64 says?", check_rows
    ),
    MeasurementPart("8B", 1, "Are products of 8B what fp64 says, in every row tile?", check_products),
    MeasurementPart("70B", 1.5, "Are products of 70B?", partial(check_products, geometry=LLAMA_70B)),
    MeasurementPart("draws", 0.5, "Are tokens and best ids a CPU's?", check_draws),
)
