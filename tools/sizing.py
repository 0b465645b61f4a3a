"""What models of common sizes need of a cluster: GPUs, memory, loading time, network. By arithmetic, nothing is run.

    python -m tools.sizing                      # GPUs of 80 GiB
    python -m tools.sizing --gpu-gib 141 --read 4.3

The smallest number of stages (1, 2, 4, ...) is chosen at which weights leave the wanted room for the KV cache. A step's
rows cross every link once: the network column is what a pipeline sends at its busiest, with `--rows` rows a second.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from app.planning.sizes import ModelSizes
from engine.model.partition import GIB
from tools.shapes import SHAPES

HEADINGS = (
    "model",
    "weights",
    "GPUs a replica",
    "weights of the largest stage, GiB",
    "KV cache of a replica, GiB (tokens)",
    "loading a stage, s",
    "a row between stages, KiB",
    "a link, Gbit/s",
)


@dataclass(frozen=True, slots=True)
class SizingAssumptions:
    """What is assumed.

    Attributes:
        gpu: bytes of one GPU.
        usable: share of them for weights, KV cache and a step; the rest is for graphs and the allocator.
        room: share of the usable bytes that the KV cache gets at least.
        read: bytes a second that one stage reads of its weights.
        rows: rows a second (tokens and drafted nodes, prompts included) of a busy replica.
    """

    gpu: float
    usable: float
    room: float
    read: float
    rows: float


def row(name: str, quantization: str | None, hardware: SizingAssumptions) -> tuple[str, ...]:
    """The cells of one model."""
    sizes = ModelSizes.of(SHAPES[name](), torch.bfloat16, quantization)
    usable, n = int(hardware.gpu * hardware.usable), 1
    while True:
        largest = max(one.weights for one in sizes.stages(sizes.split(n), 0))
        kv = sizes.kv_room(sizes.split(n), usable)
        if largest <= usable * (1 - hardware.room) and kv >= n * usable * hardware.room:
            break
        n *= 2
    tokens = kv / sizes.kv_token_bytes
    line = sizes.spec.hidden_size * sizes.dtype.itemsize
    return (
        name,
        quantization or "bf16",
        str(n),
        f"{largest / GIB:.0f}",
        f"{kv / GIB:.0f} ({tokens / 1e6:.1f}M)",
        f"{largest / hardware.read:.0f}",
        f"{line / 1024:.0f}",
        f"{line * hardware.rows * 8 / 1e9:.1f}" if n > 1 else "none",
    )


def table(hardware: SizingAssumptions) -> list[str]:
    """Lines of Markdown, one for each model in bf16 and int8."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    rows = [row(name, quantization, hardware) for name in SHAPES for quantization in (None, "int8")]
    return [line(HEADINGS), line(["---"] * len(HEADINGS)), *(line(one) for one in rows)]


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.sizing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu-gib", type=float, default=80.0, help="memory of a GPU (default: 80)")
    parser.add_argument("--usable", type=float, default=0.9, help="share of it for weights and cache (default: 0.9)")
    parser.add_argument("--room", type=float, default=0.2, help="share of that for the cache at least (default: 0.2)")
    parser.add_argument("--read", type=float, default=1.5, help="GB/s at which a stage reads weights (default: 1.5)")
    parser.add_argument("--rows", type=float, default=20_000, help="rows a second of a busy replica (default: 20000)")
    given = parser.parse_args(argv)
    hardware = SizingAssumptions(given.gpu_gib * GIB, given.usable, given.room, given.read * 1e9, given.rows)
    print("\n".join(table(hardware)))


if __name__ == "__main__":
    main()
