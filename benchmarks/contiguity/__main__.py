"""How often a sequence's blocks are no run when the cache is full, and what that costs a step.

Without ``--steps`` nothing but the scheduler runs: seconds per row of the table. With it, so many steps of every load
are replayed on the model in processor time, against the same steps in a cache where every sequence has a run of its
own: ``decoding`` are steps without prompts, ``every`` all of them. The last line of stdout is one JSON document.

    python -m benchmarks.contiguity [--occupancy 0.5,0.85,0.95] [--sharing] [--steps 200]
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.reporting.report import as_line
from benchmarks.contiguity.load import Figures, SimulatedLoad
from benchmarks.contiguity.replay import measure
from benchmarks.support.reporting import heading, row
from engine.target_model.info import TargetInfo
from engine.target_model.loading import describe_target, load_layers, whole_range
from engine.target_model.options import TargetOptions


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    torch.set_num_threads(1)
    options = TargetOptions(str(arguments.model))
    info = replace(describe_target(options, arguments.model), n_blocks=arguments.blocks)
    shard = load_layers(options, arguments.model, whole_range(info.spec), info) if arguments.steps else None
    rows: list[Figures] = []
    for occupancy in (float(share) for share in arguments.occupancy.split(",")):
        if shard is None:
            figures = scheduled(info, occupancy, arguments.sharing, arguments.warm_up)
        else:
            figures = measure(shard, info, occupancy, arguments.sharing, arguments.warm_up, arguments.steps)
        if not rows:
            print(heading(("wanted", *figures)), flush=True)
        rows.append({"wanted": occupancy, **figures})
        print(row((occupancy, *(None if value is None else f"{value:.3f}" for value in figures.values()))), flush=True)
    print(as_line({"benchmark": "contiguity", "blocks": info.n_blocks, "sharing": arguments.sharing, "rows": rows}))


def scheduled(info: TargetInfo, occupancy: float, sharing: bool, warm_up: int) -> Figures:
    """The figures of as many steps as warm the cache up."""
    load = SimulatedLoad(info, occupancy, sharing)
    load.warm_up(warm_up)
    for _ in load.steps(warm_up):
        pass
    return load.counts.figures()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=model_path, default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=2048, help="of 64 tokens (default: 2048)")
    parser.add_argument("--occupancy", default="0.5,0.7,0.85,0.95", help="shares of blocks in use, comma-separated")
    parser.add_argument("--sharing", action="store_true", help="prompts begin alike, and prefixes are cached")
    parser.add_argument("--warm-up", type=int, default=1000, help="steps before any is counted (default: 1000)")
    parser.add_argument("--steps", type=int, default=0, help="replayed on the model (default: none)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
