"""Products of a model's matrices: bits of rows in every row tile, errors, and times next to cuBLAS."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, product

import torch
from torch import Tensor

from benchmarks.gpu.measuring.clock import measure_copy_bandwidth, measure_throughput
from benchmarks.gpu.measuring.models import LLAMA_8B, Geometry, shrink
from benchmarks.gpu.setting import GpuSetting, Row
from engine.cuda.kernels.gemm import INPUT_LEAVES, choose_leaves
from engine.cuda.operands import Matrix
from engine.cuda.products import Products
from engine.model.matrices.linears import quantize_rows

SHARDED_INPUTS = ("o", "down")
ROW_TILES = (16, 32, 128, 256)  # compared with 64
COMPARED, TIMED, PROMPT = 300, (1, 16, 64), 2048  # rows
READ_BYTES = 512 << 20  # of weights that are read in turn, so that no cache holds them
ALLOWED = {torch.float32: 100.0, torch.bfloat16: 2.0}  # steps of the dtype at a row's largest number


def make_matrix(setting: GpuSetting, name: str, shape: tuple[int, int], dtype: torch.dtype) -> Matrix:
    """Return a random matrix ``[n_out, n_in]`` in ``dtype``, with the leaves of its place in a layer."""
    weight = torch.empty(shape, dtype=setting.dtype, device=setting.device).normal_(0, shape[1] ** -0.5)
    leaves = INPUT_LEAVES if name in SHARDED_INPUTS else choose_leaves(shape[0])
    values, scales = (weight, None) if dtype == setting.dtype else quantize_rows(weight, dtype)
    return Matrix(values, scales, None, leaves)


def expected_product(rows: Tensor, matrix: Matrix) -> Tensor:
    """Return the product in fp64."""
    pieces = [rows.double() @ part.float().double().T for part in torch.split(matrix.weight, 8192)]  # a head is large
    return torch.cat(pieces, -1) * (1.0 if matrix.scales is None else matrix.scales.double())


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the largest error of a row, in steps of the dtype of ``found`` at that row's largest number."""
    largest = expected.abs().amax(-1, keepdim=True)
    return float(((found.double() - expected).abs() / largest).max()) / torch.finfo(found.dtype).eps


def count_unequal(one: Tensor, other: Tensor) -> int:
    """Count rows of which any bit differs; a comparison of numbers would take -0 for 0."""
    return int((one.contiguous().view(torch.uint8) != other.contiguous().view(torch.uint8)).flatten(1).any(1).sum())


def check_products(setting: GpuSetting, geometry: Geometry = LLAMA_8B) -> Iterator[Row]:
    """Yield a row for each matrix and precision: rows unequal to those in tiles of 64, and the error against fp64."""
    n, sized = 70 if setting.is_tiny else COMPARED, shrink(setting, geometry)
    for (name, shape), dtype in product(sized.matrices().items(), (setting.dtype, torch.int8)):
        matrix = make_matrix(setting, name, shape, dtype)
        x = torch.empty(n, shape[1], dtype=setting.dtype, device=setting.device).normal_()
        of_64 = Products(row_tile=64).multiply(x, matrix)
        unequal = {f"tile {t}": count_unequal(Products(row_tile=t).multiply(x, matrix), of_64) for t in ROW_TILES}
        unequal |= {f"{m} rows": count_unequal(Products().multiply(x[-m:], matrix), of_64[-m:]) for m in TIMED}
        error, allowed = relative_error(of_64[:64], expected_product(x[:64], matrix)), ALLOWED[setting.dtype]
        label = f"{sized.name} {name}, {str(dtype).removeprefix('torch.')}"
        ok = not any(unequal.values()) and error <= allowed
        yield {"product": label, "leaves": matrix.leaves, **unequal, "error": error, "allowed": allowed, "ok": ok}


def measure_products(setting: GpuSetting) -> Iterator[Row]:
    """Check products of 8B; then yield a row for each matrix, precision and number of rows, with cuBLAS alongside."""
    yield from check_products(setting)
    copy = measure_copy_bandwidth(setting)
    for (name, shape), dtype in product(shrink(setting, LLAMA_8B).matrices().items(), (setting.dtype, torch.int8)):
        n_bytes = shape[0] * shape[1] * dtype.itemsize
        n = 1 if setting.is_tiny else -(-READ_BYTES // n_bytes)
        matrices = [make_matrix(setting, name, shape, dtype) for _ in range(n)]
        for n_rows in TIMED[: 1 if setting.is_tiny else None] + (PROMPT,) * (not setting.is_tiny and name != "head"):
            seconds, library = _time_product(setting, Products(), matrices, n_rows), None
            if dtype == setting.dtype:
                library = _time_product(setting, Products(by_library=True), matrices, n_rows)
            flops = 2e-12 * n_rows * shape[0] * shape[1]
            yield {
                "product": f"{name}, {str(dtype).removeprefix('torch.')}", "rows": n_rows,
                "us": seconds * 1e6, "cuBLAS, us": library and library * 1e6, "GB/s": n_bytes / seconds / 1e9,
                "of copy": n_bytes / seconds / copy, "TFLOP/s": flops / seconds,
                "cuBLAS, TFLOP/s": library and flops / library,
            }  # fmt: skip


def _time_product(setting: GpuSetting, products: Products, matrices: list[Matrix], n_rows: int) -> float:
    """Return the seconds of one product, whose weights are read from memory."""
    x = torch.empty(n_rows, matrices[0].weight.shape[1], dtype=setting.dtype, device=setting.device).normal_()
    turns = cycle(matrices)
    return measure_throughput(setting, lambda: products.multiply(x, next(turns)), len(matrices))
