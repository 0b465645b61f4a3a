"""How long does a trained drafter take for a tree, in one forward (ParallelSpec) or in one per depth (EAGLE)?

Drafters have the target's sizes, random weights and --context cached tokens. A step has two committed rows; all trees
have the same depth and nodes. Methods take turns, draft by draft. The ratio is to EAGLE 1, whose layer ParallelSpec
keeps. Two minutes with the default model; the last line of stdout is one JSON document.

    python -m benchmarks.drafters.latency --model DIR [--batches 1,8] [--context 256] [--device cuda --dtype bfloat16]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.training.new_drafter import ArchitectureOptions, new_spec
from benchmarks.support.reporting import BenchmarkReport, table
from engine.drafter.checkpoint.tensors import DrafterCheckpoint
from engine.drafter.networks.base import TargetParts
from engine.drafter.networks.build import new_network
from engine.drafter.serving.rows import CommittedTokens
from engine.drafter.serving.runtime import DrafterPlacement, DraftRuntime
from engine.drafter.settings import DrafterSettings
from engine.drafter.trees.draft_tree import DraftRequest
from engine.kv.arena import BlockTable
from engine.model.loader import load_spec
from engine.model.spec import ModelSpec
from engine.sampling.params import SamplingParams

BLOCK, N_NEW = 64, 2  # tokens per block; committed rows of a step
BASE = "eagle 1"
METHODS: dict[str, tuple[Any, ArchitectureOptions]] = {
    BASE: ("eagle", ArchitectureOptions(generation=1)),
    "eagle 3": ("eagle", ArchitectureOptions()),
    "parallelspec-eagle": ("parallelspec-eagle", ArchitectureOptions()),
    "parallelspec-medusa": ("parallelspec-medusa", ArchitectureOptions()),
    "p-eagle, 1 layer": ("p-eagle", ArchitectureOptions(layers=1)),
    "dflash, 2 layers": ("dflash", ArchitectureOptions(layers=2)),
    "medusa": ("medusa", ArchitectureOptions()),
}
COLUMNS = {"method": "drafter", "batch": "sequences", "forwards": "forwards", "ms": "ms a step", "ratio": "of eagle 1"}


@dataclass(slots=True)
class TimedDrafter:
    """One drafter and the sequences that it drafts for."""

    runtime: DraftRuntime
    width: int
    n_cached: int = 0

    def step(
        self, batch: int, n_rows: int, ask: DraftRequest | None, device: torch.device, dtype: torch.dtype
    ) -> float:
        """Seconds in which rows are read and trees are drafted."""
        states = torch.split(torch.randn(batch * n_rows, self.width).to(device, dtype), n_rows)
        committed = []
        for seq in range(batch):
            sequence = self.runtime.of(seq)
            assert sequence is not None
            committed.append(CommittedTokens(sequence, self.n_cached, states[seq], [5] * n_rows, 6, ask))
        began = time.perf_counter()
        with torch.inference_mode():
            if ask is not None:
                branches = self.runtime.draft(committed)
                assert all(branch is not None for branch in branches), "the drafter failed"
            else:
                self.runtime.wait(committed)
                self.runtime.catch_up([one.sequence for one in committed])
        taken = time.perf_counter() - began
        self.n_cached += n_rows
        return taken


def drafter(name: str, model: Path, target: ModelSpec, batch: int, arguments: argparse.Namespace) -> TimedDrafter:
    """A drafter with random weights."""
    method, asked = METHODS[name]
    asked = replace(asked, draft_vocab=arguments.draft_vocab, drafts=None if method == "eagle" else arguments.depth)
    spec = new_spec(method, asked, model, target, 0)
    device, dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)
    embedding = torch.randn(target.vocab_size, target.hidden_size).to(device, dtype)
    head = embedding[: spec.draft_vocab_size]
    parts = TargetParts(lambda tokens: embedding[tokens], lambda states: states @ head.T)
    weights = {key: weight.detach() * 0.05 for key, weight in new_network(spec, parts).named_parameters()}
    longest = arguments.context + N_NEW * (arguments.repeats + 3) + 200
    n_blocks = -(-longest // BLOCK)
    runtime = DraftRuntime(
        DrafterCheckpoint(spec, weights, torch.arange(len(head)) if spec.uses_part_of_target_head else None, "random"),
        parts,
        DrafterPlacement(batch * n_blocks, BLOCK, dtype, device),
        DrafterSettings("", depth=arguments.depth, beam=arguments.beam),
    )
    for seq in range(batch):
        blocks = BlockTable(BLOCK)
        blocks.extend(range(seq * n_blocks, (seq + 1) * n_blocks))
        runtime.start(seq, blocks, 0)
    made = TimedDrafter(runtime, target.hidden_size)
    made.step(batch, arguments.context, None, device, dtype)
    return made


def measure(names: Sequence[str], batch: int, model: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the table for one number of sequences."""
    target = load_spec(model)
    device, dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)
    drafters = {name: drafter(name, model, target, batch, arguments) for name in names}
    taken: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(arguments.repeats):
        for name, one in drafters.items():
            ask = DraftRequest(SamplingParams(), None, 6, one.n_cached + N_NEW + 1, arguments.depth, arguments.nodes)
            taken[name].append(one.step(batch, N_NEW, ask, device, dtype))
    base = median(taken[BASE])
    return [
        {
            "method": name,
            "batch": batch,
            "forwards": arguments.depth if METHODS[name][0] == "eagle" else 1,
            "ms": round(1e3 * median(taken[name]), 2),
            "ratio": round(median(taken[name]) / base, 2),
        }
        for name in names
    ]


def main() -> int:
    """Measure, print the table and the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="target of the drafters' sizes (default: %(default)s)")
    parser.add_argument("--batches", default="1,8", help="sequences that draft together (default: 1,8)")
    parser.add_argument("--context", type=int, default=256, help="tokens before a draft (default: 256)")
    parser.add_argument("--depth", type=int, default=5, help="drafted tokens on a path (default: 5)")
    parser.add_argument("--nodes", type=int, default=16, help="of a tree (default: 16)")
    parser.add_argument(
        "--draft-vocab", type=int, metavar="N", help="score N tokens with the target's head (default: all)"
    )
    parser.add_argument("--beam", type=int, default=8, help="nodes that eagle expands at a depth (default: 8)")
    parser.add_argument("--repeats", type=int, default=40, help="drafts of each (default: 40)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = model_path(arguments.model)
    rows = [row for n in arguments.batches.split(",") for row in measure(list(METHODS), int(n), model, arguments)]
    found = table(COLUMNS, rows)
    print(found)
    return BenchmarkReport({**vars(arguments), "rows": rows}, found, failed=False).publish(None)


if __name__ == "__main__":
    sys.exit(main())
