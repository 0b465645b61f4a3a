"""One matrix product ``[n, inputs] x [outputs, inputs] -> [n, outputs]``: its rows among others, and its time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.measuring.clock import graphed, queued
from benchmarks.gpu.measuring.geometry import SPREAD
from benchmarks.gpu.setting import Setting

Product = Callable[[Tensor, Tensor], Tensor]

ROWS = (1, 8, 63, 64, 65, 128, 512)
MOST_ROWS = 2048
MOVED = 37  # places
CACHE = 512 << 20  # bytes of weights that are read in turn, so that none is found in a cache


def most_rows(setting: Setting) -> int:
    """Among which every row is compared with itself."""
    return 130 if setting.tiny else MOST_ROWS


def operands(setting: Setting, shape: tuple[int, int], rows: int) -> tuple[Tensor, Tensor]:
    """``x`` ``[rows, inputs]`` and a weight ``[outputs, inputs]``."""
    random = torch.Generator(setting.device).manual_seed(rows)
    x = torch.empty((rows, shape[1]), dtype=setting.dtype, device=setting.device)
    weight = torch.empty(shape, dtype=setting.dtype, device=setting.device)
    return x.normal_(generator=random), weight.normal_(0, SPREAD, generator=random)


def unequal_rows(setting: Setting, multiply: Product, shape: tuple[int, int]) -> dict[str, int]:
    """How many rows differ from themselves among the most rows, by the number of rows they are among instead."""
    most = most_rows(setting)
    x, weight = operands(setting, shape, most)
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


def seconds_of(
    setting: Setting,
    multiply: Callable[[Tensor, Any], Tensor],
    shape: tuple[int, int],
    rows: int,
    made: Callable[[Tensor], Any] = Tensor.clone,
) -> float:
    """Of one product, its weights read from memory; on CUDA from a graph, so that launches do not count.

    ``multiply`` gets what is ``made`` of a weight.
    """
    x, weight = operands(setting, shape, rows)
    n = 1 if setting.tiny else max(1, -(-CACHE // weight.numel()))  # a byte each, or more
    weights = [made(weight) for _ in range(n)]

    def all_of_them() -> None:
        for one in weights:
            multiply(x, one)

    call = graphed(all_of_them) if setting.on_cuda else all_of_them
    return queued(setting, call, 1 if setting.tiny else 10, warmup=1 if setting.tiny else 3) / n
