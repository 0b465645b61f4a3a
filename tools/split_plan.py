"""What every stage of a pipeline would hold: layers, weights and KV cache, from a model's config.json alone.

    python -m tools.split_plan --config CONFIG.json --stages 2,4,8 --quantization int8 --kv-gib 16

Without --config, the model is Llama 3.3 70B.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from engine.errors import ConfigError
from engine.model.partition import GIB, ModelParts, partition
from engine.model.sizes import parameters, stage_memory, weight_bytes, with_kv
from engine.model.spec import read_spec
from engine.target.loading import resolve_dtype
from tools.shapes import llama_70b

HEADINGS = "| stages | layers per stage | weights per stage, GiB | KV cache per stage, GiB | largest stage, GiB |"


def table(
    config: Any, stages: Sequence[int], dtype: torch.dtype, quantization: str | None, kv_bytes: int, limit: int | None
) -> list[str]:
    """A row for every number of stages, split as ``auto`` does."""
    spec = read_spec(config)
    sizes, weights = parameters(config, spec), weight_bytes(config, spec, dtype, quantization)
    kv = kv_bytes // spec.n_layers
    rows = [HEADINGS, "|---|---|---|---|---|"]
    for n in stages:
        limits = None if limit is None else (limit,) * n
        ranges = partition(ModelParts(sizes.layers, 0, sizes.head), with_kv(weights, kv), n, limits)
        held = stage_memory(weights, kv, ranges)
        cells = [
            ", ".join(str(len(one)) for one in ranges),
            ", ".join(f"{one.weights / GIB:.1f}" for one in held),
            ", ".join(f"{one.kv / GIB:.1f}" for one in held),
            f"{max(one.weights + one.kv for one in held) / GIB:.1f}",
        ]
        rows.append(f"| {n} | {' | '.join(cells)} |")
    return rows


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="a model's config.json, or its directory")
    parser.add_argument("--stages", default="2,4,8", help="numbers of stages (default: 2,4,8)")
    parser.add_argument("--dtype", default="bfloat16", help="of everything that is not int8 (default: bfloat16)")
    parser.add_argument("--quantization", choices=["int8"])
    parser.add_argument("--kv-gib", type=float, default=16.0, help="KV cache over all stages (default: 16)")
    parser.add_argument("--stage-memory-gib", type=float, help="what a stage may take")
    arguments = parser.parse_args()
    config = llama_70b() if arguments.config is None else AutoConfig.from_pretrained(arguments.config)
    dtype = resolve_dtype(arguments.dtype, read_spec(config), "cpu")
    limit = None if arguments.stage_memory_gib is None else int(arguments.stage_memory_gib * GIB)
    stages = [int(part) for part in arguments.stages.split(",")]
    try:
        rows = table(config, stages, dtype, arguments.quantization, int(arguments.kv_gib * GIB), limit)
    except ConfigError as error:
        parser.error(str(error))
    print("\n".join(rows))


if __name__ == "__main__":
    main()
