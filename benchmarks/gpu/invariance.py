"""Which matrix product gives a row the same bits whatever rows stand beside it, and how fast is it?

The ten weight matrices of Llama 8B and 70B (q, k and v as one, gate and up as one) are multiplied with 1 to 2,048
rows. A row counts as unequal where any of its bits differs from the same row among 2,048, in the same place or in
another one. Candidates:

* cuBLAS as the engine sets it, and with the rows padded to multiples of 64;
* G1: cuBLASLt told not to split the inputs, and the same with vLLM's workspace settings, both padded too;
* G2: a persistent Triton kernel of our own (``persistent_gemm``), whose tiling is chosen here for each matrix from
  what 64 rows take; 128 rows a tile above 64. Once more with 16 rows a tile below 16: mma.sync instead of wgmma.

"of copy" is the speed at which all matrices of a step are read, over that of a plain copy. Settings that a process
reads once are measured in processes of their own, and so is our kernel: a fault there ends no more than its process.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from itertools import islice, product
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.measuring.clock import copy_bandwidth
from benchmarks.gpu.measuring.geometry import LLAMA_8B, LLAMA_70B, Geometry, sized
from benchmarks.gpu.measuring.products import Product, most_rows, operands, seconds_of, unequal_rows
from benchmarks.gpu.measuring.rows import Row, Rows
from benchmarks.gpu.setting import Report, Setting
from engine.device import set_precision

if TYPE_CHECKING:
    from benchmarks.gpu.measuring.persistent_gemm import Tiling

Found = TypeVar("Found")

TIMED = (1, 64, 512)
SEARCHED_UNTIL = 60  # seconds before the deadline: what is found by then has to be measured
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
    pad: int = 1  # rows are padded to multiples of it
    split_k: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)


AS_IT_IS = Blas("cuBLAS as the engine sets it")
WORKSPACES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}
ELSEWHERE = (
    Blas("G1: cuBLASLt, no split-K", split_k=False),
    Blas("G1: the same, rows in 64s", 64, False),
    Blas("G1: the same, vLLM's workspaces", 64, False, WORKSPACES),
)
OURS = {"G2: Triton": 0, "G2, mma.sync below 16 rows": 16}  # rows a tile where there are few


def run(setting: Setting) -> Report:
    """All candidates, those that need no kernel of ours first."""
    rows = Rows(setting, "invariance: rows of a product alone and among others", COLUMNS)
    copy = copy_bandwidth(setting)
    for blas in AS_IT_IS, replace(AS_IT_IS, name=f"{AS_IT_IS.name}, rows in 64s", pad=64):
        rows.attempt(blas.name, partial(library, setting, blas, copy))
    for blas in ELSEWHERE[:1] if setting.tiny else ELSEWHERE:
        rows.attempt(blas.name, partial(_in_a_process, library, setting, blas, copy))
    notes = [f"A copy reads and writes {copy / 1e12:.3g} TB/s."]
    if not setting.on_cuda:
        notes.append("On a CPU: torch's own product, for which cuBLAS's settings mean nothing.")
    if find_spec("triton") is None:
        notes.append("G2 not run: no triton.")
    elif not setting.on_cuda:
        notes.append("G2 not run: no CUDA device.")
    else:
        tilings = rows.tried("G2: tilings", partial(_in_a_process, chosen, setting))
        for name, few in OURS.items() if tilings else ():
            rows.attempt(name, partial(_in_a_process, ours, setting, name, few, tilings, copy))
    return rows.report(*notes)


def _in_a_process(task: Callable[..., Found], *given: Any) -> Found:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(task, *given).result()


def library(setting: Setting, blas: Blas, copy: float) -> list[Row]:
    """cuBLAS with some settings, which last as long as the process; ``copy`` in bytes a second."""
    os.environ.update(blas.environment)
    if not setting.on_cuda:
        torch.set_num_threads(1)
    set_precision(setting.device)
    if setting.on_cuda and not blas.split_k:
        torch.backends.cuda.preferred_blas_library("cublaslt")
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)  # (bf16, split-K)
    return [_row(setting, blas.name, {key: _padded(blas.pad) for key in matrices(setting)}, copy)]


def _padded(multiple: int) -> Product:
    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        missing = -len(x) % multiple
        return functional.linear(functional.pad(x, (0, 0, 0, missing)) if missing else x, weight)[: len(x)]

    return multiply


def chosen(setting: Setting) -> dict[str, Tiling]:
    """For each matrix the tiling that is fastest at 64 rows."""
    return {key: _fastest(setting, shape) for key, shape in matrices(setting).items()}


def ours(setting: Setting, name: str, few: int, tilings: Mapping[str, Tiling], copy: float) -> list[Row]:
    """The Triton kernel."""
    row = _row(setting, name, {key: _tiled(tiling, few) for key, tiling in tilings.items()}, copy)
    return [{**row, "tilings": {key: repr(tiling) for key, tiling in tilings.items()}}]


def _tiled(tiling: Tiling, few: int) -> Product:
    """With ``few`` rows a tile where there are no more rows than that, 64 to 64 rows, 128 above."""
    from benchmarks.gpu.measuring import persistent_gemm

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        fit = replace(tiling, block_m=few) if len(x) <= few else tiling
        return persistent_gemm.product(x, weight, replace(tiling, block_m=128, warps=8) if len(x) > 64 else fit)

    return multiply


def _fastest(setting: Setting, shape: tuple[int, int]) -> Tiling:
    """The best tiling for a matrix; one that the device has no room for, or not for 128 rows, is passed over."""
    best: tuple[float, Tiling] | None = None
    for tiling in islice(_tilings(shape[1]), 2 if setting.tiny else None):
        if best is not None and setting.left < SEARCHED_UNTIL:
            break
        try:
            seconds = seconds_of(setting, _tiled(tiling, 0), shape, 64)
            if best is None or seconds < best[0]:
                _tiled(tiling, 0)(*operands(setting, shape, 128))
                setting.synchronize()
                best = seconds, tiling
        except Exception as error:  # too much shared memory, or what this Triton cannot compile
            print(f"{tiling}: {type(error).__name__}", flush=True)
    if best is None:
        raise RuntimeError(f"no tiling of {shape} runs")
    return best[1]


def _tilings(n_in: int) -> Iterator[Tiling]:
    from benchmarks.gpu.measuring.persistent_gemm import BLOCK_K, Tiling

    for block_n, split, (stages, programs) in product((64, 128), (1, 2, 4, 8), ((4, 1), (6, 1), (4, 2))):
        if n_in % (BLOCK_K * split) == 0:
            yield Tiling(block_n, split, stages=stages, programs=programs)


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
        seconds[key] = {n: seconds_of(setting, multiply, shape, n) for n in TIMED}
        most = most_rows(setting)
        taken += seconds_of(setting, multiply, shape, most)
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
