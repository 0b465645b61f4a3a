"""What every stage of a pipeline would hold: layers, weights and KV cache, from a model's config.json alone.

    python -m tools.split_plan --config CONFIG.json --stages 2,4,8 --quantization int8 --kv-gib 16

Without --config, the model is Llama 3.3 70B.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoConfig

from app.planning.sizes import ModelSizes
from engine.errors import ConfigError
from engine.model.partition import GIB
from engine.model.spec import read_spec
from engine.target.numerics import resolve_dtype
from tools.shapes import llama_70b

HEADINGS = "| stages | layers per stage | weights per stage, GiB | KV cache per stage, GiB | largest stage, GiB |"


def table(sizes: ModelSizes, stages: Sequence[int], kv_bytes: int, limit: int | None) -> list[str]:
    """A row for every number of stages, split as ``auto`` does."""
    rows = [HEADINGS, "|---|---|---|---|---|"]
    for n in stages:
        held = sizes.stages(sizes.split(n, kv_bytes, limit), kv_bytes)
        cells = [
            ", ".join(str(len(one.layers)) for one in held),
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
    parser.add_argument(
        "--dtype", default="bfloat16", help="of everything that does not have one byte (default: bfloat16)"
    )
    parser.add_argument("--quantization", choices=["int8", "fp8"])
    parser.add_argument("--kv-gib", type=float, default=16.0, help="KV cache over all stages (default: 16)")
    parser.add_argument("--stage-memory-gib", type=float, help="what a stage may take")
    arguments = parser.parse_args()
    config = llama_70b() if arguments.config is None else AutoConfig.from_pretrained(arguments.config)
    dtype = resolve_dtype(arguments.dtype, read_spec(config), "cpu")
    limit = None if arguments.stage_memory_gib is None else int(arguments.stage_memory_gib * GIB)
    stages = [int(part) for part in arguments.stages.split(",")]
    try:
        sizes = ModelSizes.of(config, dtype, arguments.quantization)
        rows = table(sizes, stages, int(arguments.kv_gib * GIB), limit)
    except ConfigError as error:
        parser.error(str(error))
    print("\n".join(rows))


if __name__ == "__main__":
    main()
