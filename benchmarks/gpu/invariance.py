"""Which matrix product gives a row the same bits whatever rows stand beside it, and how fast is it?

The ten weight matrices of Llama 8B and 70B (q, k and v as one, gate and up as one) are multiplied with 1 to 2,048
rows. A row counts as unequal where any of its bits differs from the same row among 2,048, in the same place or in
another one. Candidates:

* cuBLAS as the engine sets it, and with the rows padded to multiples of 64;
* G1: cuBLASLt told not to split the inputs, and the same with vLLM's workspace settings, both padded too;
* G2: a persistent Triton kernel of our own (``persistent_gemm``), whose tiling is chosen here for each matrix from
  what 64 rows take; 128 rows a tile above 64. Once more with 16 rows a tile below 16: mma.sync instead of wgmma.

"of copy" is the speed at which all matrices of a step are read, over that of a plain copy. Settings that a process
reads once are measured in processes of their own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.measuring.clock import copy_bandwidth, graphed, queued
from benchmarks.gpu.measuring.geometry import LLAMA_8B, LLAMA_70B, SPREAD, Geometry, sized
from benchmarks.gpu.measuring.rows import Row, Rows
from benchmarks.gpu.setting import Report, Setting
from engine.device import set_precision

if TYPE_CHECKING:
    from benchmarks.gpu.measuring.persistent_gemm import Tiling

Product = Callable[[Tensor, Tensor], Tensor]

ROWS = (1, 8, 63, 64, 65, 128, 512)
MOST_ROWS = 2048
MOVED = 37  # places
TIMED = (1, 64, 512)
CACHE = 512 << 20  # bytes of weights that are read in turn, so that none is found in a cache
COLUMNS = {
    "product": "product",
    "equal": "matrices equal",
    "unequal": "unequal at (matrices)",
    "ms_8b_1": "8B, 1 row, ms",
    "ms_8b_64": "64 rows, ms",
    "copy_8b_64": "of copy",
    "ms_70b_64": "20 layers of 70B, 64 rows, ms",
    "copy_70b_64": "of copy",
    "tflops": "TFLOP/s at 2,048",
}


@dataclass(frozen=True, slots=True)
class Blas:
    """Settings of cuBLAS; the environment is read at a process's first product."""

    name: str
    pads: tuple[int, ...]  # rows are padded to multiples of these, one candidate each
    split_k: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)


AS_IT_IS = Blas("cuBLAS as the engine sets it", (1, 64))
WORKSPACES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}
ELSEWHERE = (
    Blas("G1: cuBLASLt, no split-K", (1, 64), False),
    Blas("G1: the same, vLLM's workspaces", (64,), False, WORKSPACES),
)


def run(setting: Setting) -> Report:
    """All candidates, those that need no kernel of ours first."""
    rows = Rows(setting, "invariance: rows of a product alone and among others", COLUMNS)
    copy = copy_bandwidth(setting)
    rows.attempt(AS_IT_IS.name, partial(library, setting, AS_IT_IS, copy))
    for blas in ELSEWHERE[:1] if setting.tiny else ELSEWHERE:
        rows.attempt(blas.name, partial(_in_a_process, setting, blas, copy))
    notes = [f"A copy reads and writes {copy / 1e12:.3g} TB/s."]
    if not setting.on_cuda:
        notes.append("On a CPU: torch's own product, for which cuBLAS's settings mean nothing.")
    if find_spec("triton") is None:
        notes.append("G2 not run: no triton.")
    elif not setting.on_cuda:
        notes.append("G2 not run: no CUDA device.")
    else:
        rows.attempt("G2", partial(ours, setting, copy))
    return rows.report(*notes)


def _in_a_process(setting: Setting, blas: Blas, copy: float) -> list[Row]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(library, setting, blas, copy).result()


def library(setting: Setting, blas: Blas, copy: float) -> list[Row]:
    """cuBLAS with some settings, which last as long as the process; ``copy`` in bytes a second."""
    os.environ.update(blas.environment)
    if not setting.on_cuda:
        torch.set_num_threads(1)
    set_precision(setting.device)
    if setting.on_cuda and not blas.split_k:
        torch.backends.cuda.preferred_blas_library("cublaslt")
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)  # (bf16, split-K)
    found = []
    for pad in blas.pads:
        name = blas.name if pad == 1 else f"{blas.name}, rows in {pad}s"
        found.append(_row(setting, name, {key: _padded(pad) for key in matrices(setting)}, copy))
    return found


def _padded(multiple: int) -> Product:
    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        missing = -len(x) % multiple
        return functional.linear(functional.pad(x, (0, 0, 0, missing)) if missing else x, weight)[: len(x)]

    return multiply


def ours(setting: Setting, copy: float) -> list[Row]:
    """The Triton kernel, each matrix with the tiling that is fastest at 64 rows."""
    chosen = {key: _fastest(setting, shape) for key, shape in matrices(setting).items()}
    found = [
        _row(setting, "G2: Triton", {key: _tiled(tiling, 0) for key, tiling in chosen.items()}, copy),
        _row(setting, "G2, mma.sync below 16 rows", {key: _tiled(tiling, 16) for key, tiling in chosen.items()}, copy),
    ]
    return [{**row, "tilings": {key: repr(tiling) for key, tiling in chosen.items()}} for row in found]


def _tiled(tiling: Tiling, few: int) -> Product:
    """With ``few`` rows a tile where there are no more rows than that, 64 to 64 rows, 128 above."""
    from benchmarks.gpu.measuring.persistent_gemm import product

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        fit = replace(tiling, block_m=few) if len(x) <= few else tiling
        return product(x, weight, replace(tiling, block_m=128, warps=8) if len(x) > 64 else fit)

    return multiply


def _fastest(setting: Setting, shape: tuple[int, int]) -> Tiling:
    """The best tiling for a matrix; one that the device has no room for is passed over."""
    from benchmarks.gpu.measuring.persistent_gemm import BLOCK_K, Tiling

    best: tuple[float, Tiling] | None = None
    for block_n in (64, 128):
        for split in (1, 2, 4, 8):
            for stages, programs in ((4, 1), (6, 1), (4, 2)):
                tiling = Tiling(block_n, split, stages=stages, programs=programs)
                if shape[1] % (BLOCK_K * split):
                    continue
                try:
                    seconds = _seconds(setting, _tiled(tiling, 0), shape, 64)
                except Exception as error:  # too much shared memory, or what this Triton cannot compile
                    print(f"{tiling}: {type(error).__name__}", flush=True)
                    continue
                if best is None or seconds < best[0]:
                    best = seconds, tiling
    if best is None:
        raise RuntimeError(f"no tiling of {shape} runs")
    return best[1]


def geometries(setting: Setting) -> tuple[Geometry, Geometry]:
    """Of 8B, and of a quarter of 70B: what a stage of four holds, and the head."""
    return sized(setting, LLAMA_8B), sized(setting, replace(LLAMA_70B, n_layers=20))


def matrices(setting: Setting) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) by model and name."""
    return {f"{g.name} {name}": shape for g in geometries(setting) for name, shape in g.matrices().items()}


def _row(setting: Setting, name: str, products: Mapping[str, Product], copy: float) -> Row:
    """A candidate, over all matrices."""
    unequal: dict[str, dict[str, int]] = {}
    seconds: dict[str, dict[int, float]] = {}
    work = taken = 0.0
    for key, shape in matrices(setting).items():
        multiply = products[key]
        wrong = {at: n for at, n in unequal_rows(setting, multiply, shape).items() if n}
        if wrong:
            unequal[key] = wrong
        seconds[key] = {n: _seconds(setting, multiply, shape, n) for n in TIMED}
        most = _most(setting)
        taken += _seconds(setting, multiply, shape, most)
        work += 2.0 * shape[0] * shape[1] * most
    found: dict[str, Any] = {"product": name, "seconds": seconds, "unequal_rows": unequal}
    found["tflops"] = work / taken / 1e12
    found["equal"] = f"{len(products) - len(unequal)} of {len(products)}"
    at = Counter(n for wrong in unequal.values() for n in wrong)
    found["unequal"] = ", ".join(f"{n} ({matrices})" for n, matrices in at.items()) or None
    for label, geometry in zip(("8b", "70b"), geometries(setting), strict=True):
        for n in TIMED:
            step = sum(
                seconds[f"{geometry.name} {part}"][n] * (1 if part == "head" else geometry.n_layers)
                for part in geometry.matrices()
            )
            found[f"ms_{label}_{n}"] = step * 1e3
            found[f"copy_{label}_{n}"] = geometry.bytes_read(setting.dtype) / step / copy
    return found


def _most(setting: Setting) -> int:
    return 130 if setting.tiny else MOST_ROWS


def _operands(setting: Setting, shape: tuple[int, int], rows: int) -> tuple[Tensor, Tensor]:
    """``x`` ``[rows, inputs]`` and a weight ``[outputs, inputs]``."""
    random = torch.Generator(setting.device).manual_seed(rows)
    x = torch.empty((rows, shape[1]), dtype=setting.dtype, device=setting.device)
    weight = torch.empty(shape, dtype=setting.dtype, device=setting.device)
    return x.normal_(generator=random), weight.normal_(0, SPREAD, generator=random)


def unequal_rows(setting: Setting, multiply: Product, shape: tuple[int, int]) -> dict[str, int]:
    """How many rows differ from themselves among the most rows, by the number of rows they are among instead."""
    most = _most(setting)
    x, weight = _operands(setting, shape, most)
    among = multiply(x, weight)
    counted = {str(n): _differing(multiply(x[:n], weight), among[:n]) for n in ROWS if n < most}
    moved = multiply(x.roll(MOVED, 0)[: most // 4], weight)
    return counted | {
        "moved": _differing(moved, among.roll(MOVED, 0)[: most // 4]),
        "again": _differing(multiply(x, weight), among),
    }


def _differing(one: Tensor, other: Tensor) -> int:
    """Rows ``[n, n_out]`` of which any bit differs; a comparison of numbers would take -0 for 0."""
    return int((one.view(torch.uint8) != other.view(torch.uint8)).any(dim=1).sum())


def _seconds(setting: Setting, multiply: Product, shape: tuple[int, int], rows: int) -> float:
    """Of one product, its weights read from memory; on CUDA from a graph, so that launches do not count."""
    x, weight = _operands(setting, shape, rows)
    n = 1 if setting.tiny else max(1, -(-CACHE // (weight.numel() * weight.element_size())))
    weights = [weight, *(weight.clone() for _ in range(n - 1))]

    def all_of_them() -> None:
        for one in weights:
            multiply(x, one)

    call = graphed(all_of_them) if setting.on_cuda else all_of_them
    return queued(setting, call, 1 if setting.tiny else 10, warmup=1 if setting.tiny else 3) / n
