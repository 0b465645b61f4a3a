"""Does every kernel of ours compute what it should, each row for itself, and how fast are weights read?

All but attention, which ``exact`` checks by whole texts. Each runs on random rows, in memory full of NaNs, against
fp64: "largest error" is in steps of the output's dtype at its row's largest number (a few, for what is rounded several
times). A row counts as unequal where any of its bits differs from the same row among the most, alone, among 8 to 128,
in another place, or once more. Draws are held against a CPU's: tokens, and the best ids. Products are timed for 1, 64
and 512 rows, their weights read from memory: in the dtype of the rows, in int8 and in fp8; "of copy" is the speed at
which a weight is read, over that of a plain copy. Each part runs in a process of its own: a fault there ends no more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any, TypeVar

import torch
from torch import Tensor

from benchmarks.gpu.measuring.clock import copy_bandwidth
from benchmarks.gpu.measuring.geometry import LLAMA_8B, LLAMA_70B, Geometry, sized
from benchmarks.gpu.measuring.products import seconds_of
from benchmarks.gpu.measuring.rows import Row, Rows
from benchmarks.gpu.setting import Report, Setting

Found = TypeVar("Found")

ROWS = (1, 8, 63, 64, 65, 128)
MOST, MOST_TINY = 512, 20
TIMED = (1, 64, 512)
INTERPRET = "TRITON_INTERPRET"
CHECKED = {"kernel": "kernel", "error": "largest error", "unwritten": "NaNs left", "unequal": "rows unequal at (rows)"}
DRAWS = {"draw": "draw", "rows": "rows", "other": "unlike a CPU's", "unequal": "rows unequal alone"}
PRODUCTS = {
    "product": "product",
    "us_1": "1 row, us",
    "copy_1": "of copy",
    "us_64": "64 rows, us",
    "copy_64": "of copy",
    "us_512": "512 rows, us",
    "tflops": "TFLOP/s",
}


def run(setting: Setting) -> Report:
    """Results first, then times."""
    checked = Rows(setting, "kernels: results, and rows alone and among others", CHECKED)
    drawn, timed = Rows(setting, "Draws", DRAWS), Rows(setting, "Products", PRODUCTS)
    if find_spec("triton") is None:
        return checked.report("Not run: no triton.")
    copy = copy_bandwidth(setting)
    geometries = [sized(setting, LLAMA_8B)] if setting.tiny else [LLAMA_8B, LLAMA_70B]
    for geometry in geometries:
        checked.attempt(f"results, {geometry.name}", partial(_apart, setting, results, geometry))
    drawn.attempt("draws", partial(_apart, setting, draws))
    for geometry in geometries:
        timed.attempt(f"times, {geometry.name}", partial(_apart, setting, times, geometry, copy))
    notes = [f"A copy reads and writes {copy / 1e12:.3g} TB/s."]
    if not setting.on_cuda:
        notes.append("On a CPU: by Triton's interpreter, whose products are NumPy's; times mean nothing.")
    return checked.report(*notes, *drawn.notes, *timed.notes, further=(drawn, timed))


def _apart(setting: Setting, task: Callable[..., Found], *given: Any) -> Found:
    """In a process of its own; on a CPU in one whose Triton interprets, which may be this one."""
    if not setting.on_cuda and os.environ.get(INTERPRET) == "1":
        return task(setting, *given)
    before = os.environ.get(INTERPRET)
    os.environ[INTERPRET] = "0" if setting.on_cuda else "1"
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(task, setting, *given).result()
    finally:
        if before is None:
            del os.environ[INTERPRET]
        else:
            os.environ[INTERPRET] = before


def results(setting: Setting, geometry: Geometry) -> list[Row]:
    """Of every kernel that computes rows."""
    from benchmarks.gpu.measuring.kernel_cases import cases

    most = MOST_TINY if setting.tiny else MOST
    found: list[Row] = []
    for case in cases(setting, geometry, most):
        among = case.result(torch.arange(most, device=setting.device))
        expected = case.expected()
        largest = expected.abs().amax(-1, keepdim=True)
        error = ((among.double() - expected).abs() / largest).nan_to_num().max() / torch.finfo(among.dtype).eps
        unequal = unequal_rows(setting, case.result, among)
        told = ", ".join(f"{at} ({n})" for at, n in unequal.items() if n) or None
        nans = int(among.isnan().sum())
        row = {"kernel": case.name, "error": float(error), "unwritten": nans, "unequal": told}
        print(row, flush=True)  # what a fault would take along
        found.append(row)
    return found


def unequal_rows(setting: Setting, result: Callable[[Tensor], Tensor], among: Tensor) -> dict[str, int]:
    """How many rows differ in any bit from themselves ``among`` the most, by what they are among instead."""
    order = torch.arange(len(among), device=setting.device)
    rows = {str(n): order[:n] for n in ROWS if n < len(among)}
    rows |= {"moved": order.roll(37)[: len(among) // 4], "alone": order[-1:], "again": order}
    return {at: int((_bits(result(its)) != _bits(among[its])).flatten(1).any(dim=1).sum()) for at, its in rows.items()}


def _bits(numbers: Tensor) -> Tensor:
    return numbers.contiguous().view(torch.uint8)


def draws(setting: Setting) -> list[Row]:
    """Tokens, and the best ids."""
    from benchmarks.gpu.measuring.draw_cases import rows

    return rows(setting)


def times(setting: Setting, geometry: Geometry, copy: float) -> list[Row]:
    """Of every matrix, in the dtype of the rows and in one byte a number; ``copy`` in bytes a second."""
    from engine.cuda.kernels.gemm import linear
    from engine.model.scaled import FP8_DTYPE, quantize_rows

    def multiply(x: Tensor, weight: tuple[Tensor, Tensor | None]) -> Tensor:
        out = torch.empty(len(x), len(weight[0]), dtype=x.dtype, device=x.device)
        linear(x, weight[0], out, scales=weight[1])
        return out

    found: list[Row] = []
    counts = TIMED[:2] if setting.tiny else TIMED
    for name, shape in [*geometry.matrices().items()][: 2 if setting.tiny else None]:
        for dtype in (setting.dtype, torch.int8, FP8_DTYPE):
            small = None if dtype == setting.dtype else dtype

            def made(weight: Tensor, small: torch.dtype | None = small) -> tuple[Tensor, Tensor | None]:
                return (weight, None) if small is None else quantize_rows(weight, small)

            seconds = {n: seconds_of(setting, multiply, shape, n, made) for n in counts}
            n_bytes = shape[0] * shape[1] * dtype.itemsize
            what = str(dtype).removeprefix("torch.")
            row: dict[str, Any] = {"product": f"{geometry.name} {name}, {what}", "seconds": seconds}
            row |= {f"us_{n}": took * 1e6 for n, took in seconds.items()}
            row |= {f"copy_{n}": n_bytes / took / copy for n, took in seconds.items()}
            row["tflops"] = 2e-12 * shape[0] * shape[1] * counts[-1] / seconds[counts[-1]]
            found.append(row)
    return found
