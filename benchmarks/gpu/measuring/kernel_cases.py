"""Kernels that compute rows of numbers, as cases: what they leave for some rows, and the same in fp64.

Imports Triton's kernels: on a CPU they run only where ``TRITON_INTERPRET`` was 1 before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.measuring.geometry import SPREAD, Geometry
from benchmarks.gpu.setting import Setting
from engine.cuda.kernels.activation import gated
from engine.cuda.kernels.embed import embed
from engine.cuda.kernels.gemm import linear
from engine.cuda.kernels.moves import move_rows
from engine.cuda.kernels.norm import rms_norm
from engine.cuda.kernels.parts import Parts
from engine.cuda.kernels.rope import rope_write
from engine.model.scaled import FP8_DTYPE, quantize_rows

EPS = 1e-5
MOVED = 64  # rows of an arena
PARTS = 4  # of products


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel on random rows.

    Args:
        name: for the table.
        result: numbers of rows ``[n]`` -> what the kernel leaves for them ``[n, ..]``, in memory of NaNs before.
        expected: the same of all rows in fp64, in order.
    """

    name: str
    result: Callable[[Tensor], Tensor]
    expected: Callable[[], Tensor]


def cases(setting: Setting, geometry: Geometry, most: int) -> Iterator[Case]:
    """All of them, on ``most`` rows; one is made when the one before is done with."""
    made = _Made(setting, geometry, most)
    yield from (made.norm(0.0), made.norm(1.0), made.gated("silu"), made.gated("gelu_tanh"), made.embed())
    yield from (made.rope(has_norm=False), made.rope(has_norm=True), made.moves())
    yield from (made.norm(0.0, PARTS), made.gated("silu", PARTS), made.rope(True, PARTS))
    for name, shape in [*geometry.matrices().items()][: 2 if setting.tiny else None]:
        for dtype in (None, torch.int8, FP8_DTYPE):
            yield made.product(name, shape, dtype)


class _Made:
    def __init__(self, setting: Setting, geometry: Geometry, most: int) -> None:
        self._setting, self._geometry, self._most = setting, geometry, most
        self._random = torch.Generator(setting.device).manual_seed(most)

    def _normal(self, *shape: int, spread: float = 1.0) -> Tensor:
        made = torch.empty(shape, dtype=self._setting.dtype, device=self._setting.device)
        return made.normal_(0, spread, generator=self._random)

    def _empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.full(shape, torch.nan, dtype=dtype or self._setting.dtype, device=self._setting.device)

    def _below(self, limit: int, n: int) -> Tensor:
        made = torch.randint(0, limit, (n,), generator=self._random, device=self._setting.device)
        return made.int()

    def _in_parts(self, width: int, n_parts: int, spread: float = 1.0) -> tuple[Callable[[Tensor], Parts], Tensor]:
        """Some rows of a product ``[most, width]``, as a kernel reads them, and all of it, rounded."""
        if n_parts == 1:
            x = self._normal(self._most, width, spread=spread)
            return lambda rows: Parts(x[rows]), x
        parts = self._normal(n_parts, self._most, width, spread=spread * n_parts**-0.5).float()
        return lambda rows: Parts(parts[:, rows].flatten(0, 1), n_parts), parts.sum(0).to(self._setting.dtype)

    def norm(self, offset: float, n_parts: int = 1) -> Case:
        width = self._geometry.hidden
        x_of, x = self._in_parts(width, n_parts)
        stream, weight = self._normal(self._most, width), self._normal(width)

        def result(rows: Tensor) -> Tensor:
            out, sums = self._empty(len(rows), width), stream[rows]
            rms_norm(x_of(rows), weight, out, EPS, residual=sums, offset=offset)
            return torch.cat((out, sums), -1)

        def expected() -> Tensor:
            sums = (stream + x).double()
            return torch.cat((functional.rms_norm(sums, (width,), offset + weight.double(), EPS), sums), -1)

        return Case(f"norm, offset {offset:.0f}{_told(n_parts)}", result, expected)

    def gated(self, kind: str, n_parts: int = 1) -> Case:
        width = self._geometry.intermediate
        x_of, x = self._in_parts(2 * width, n_parts, spread=2.0)

        def result(rows: Tensor) -> Tensor:
            out = self._empty(len(rows), width)
            gated(x_of(rows), out, kind)
            return out

        def expected() -> Tensor:
            gate, up = x.double().chunk(2, -1)
            silu = functional.silu(gate)
            return up * (silu if kind == "silu" else functional.gelu(gate, approximate="tanh"))

        return Case(f"gated, {kind}{_told(n_parts)}", result, expected)

    def embed(self) -> Case:
        table, tokens = self._normal(1000, self._geometry.hidden), self._below(1000, self._most)

        def result(rows: Tensor) -> Tensor:
            out = self._empty(len(rows), self._geometry.hidden)
            embed(tokens[rows], table, out, 2.0)
            return out

        return Case("embed", result, lambda: 2.0 * table[tokens].double())

    def rope(self, has_norm: bool, n_parts: int = 1) -> Case:
        g = self._geometry
        heads, dim = g.n_heads + 2 * g.n_kv_heads, g.head_dim
        (qkv_of, qkv), positions = self._in_parts(heads * dim, n_parts), self._below(131072, self._most)
        inv_freq = 5e5 ** -(torch.arange(0, dim, 2, device=qkv.device) / dim)
        weights = [self._normal(dim) if has_norm else None for _ in range(2)]

        def result(rows: Tensor) -> Tensor:
            n = len(rows)
            q, k, v = self._empty(n, g.n_heads * dim), *(self._empty(n, g.n_kv_heads, dim) for _ in range(2))
            slots = torch.arange(n - 1, -1, -1, dtype=torch.int32, device=q.device)
            rope_write(
                qkv_of(rows), positions[rows], slots, inv_freq, q, k, v,
                heads=g.n_heads, kv_heads=g.n_kv_heads, head_dim=dim, q_norm=weights[0], k_norm=weights[1], eps=EPS,
            )  # fmt: skip
            return torch.cat((q, k.flip(0).flatten(1), v.flip(0).flatten(1)), -1)

        def expected() -> Tensor:
            wide = qkv.double().view(self._most, heads, dim)
            parts = torch.split(wide, [g.n_heads, g.n_kv_heads, g.n_kv_heads], 1)
            angles = (positions.float()[:, None] * inv_freq).double()  # fp32, as Hugging Face has them
            cos, sin = angles.cos()[:, None], angles.sin()[:, None]
            turned = []
            for part, weight in zip(parts, weights, strict=False):  # values are neither normalised nor turned
                x = part if weight is None else functional.rms_norm(part, (dim,), weight.double(), EPS)
                first, second = x.chunk(2, -1)
                turned.append(torch.cat((first * cos - second * sin, second * cos + first * sin), -1))
            return torch.cat([one.flatten(1) for one in (*turned, parts[2])], -1)

        return Case(f"rope{', norms' if has_norm else ''}{_told(n_parts)}", result, expected)

    def moves(self) -> Case:
        """Rows are not the kernel's here: whatever is asked for, a whole arena moves down by one and is returned."""
        arena = self._normal(2, 2, MOVED, self._geometry.n_kv_heads, self._geometry.head_dim)
        sources = torch.arange(1, MOVED, dtype=torch.int32, device=arena.device)

        def result(rows: Tensor) -> Tensor:
            moved = arena.clone()
            move_rows(moved[:, 0], moved[:, 1], sources, sources - 1)
            return moved[..., : MOVED - 1, :, :].flatten()[None].expand(len(rows), -1)

        return Case("moves", result, lambda: arena[..., 1:, :, :].double().flatten()[None].expand(self._most, -1))

    def product(self, name: str, shape: tuple[int, int], dtype: torch.dtype | None) -> Case:
        x, full = self._normal(self._most, shape[1]), self._normal(*shape, spread=SPREAD)
        weight, scales = (full, None) if dtype is None else quantize_rows(full, dtype)
        out_dtype = torch.float32 if name == "head" else self._setting.dtype

        def result(rows: Tensor) -> Tensor:
            out = self._empty(len(rows), shape[0], dtype=out_dtype)
            linear(x[rows], weight, out, scales=scales)
            return out

        def expected() -> Tensor:
            outs = [part.float().double() for part in torch.split(weight, 8192)]  # the head's would fill the memory
            sums = torch.cat([x.double() @ part.T for part in outs], -1)
            return sums if scales is None else sums * scales.double()

        what = str(dtype or self._setting.dtype).removeprefix("torch.")
        return Case(f"{self._geometry.name} {name}, {what}", result, expected)


def _told(n_parts: int) -> str:
    return "" if n_parts == 1 else f", of {n_parts} parts"
