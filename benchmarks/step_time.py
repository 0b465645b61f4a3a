"""What does a step cost, over a bare forward pass of the same width, mask and prefix (batch 1, fp32, one thread)?

The engine's side is everything a decode step does but drafting: schedule, pack, run the layers, verify, commit. The
bare side is ``model.forward`` with sdpa, a ``DynamicCache`` and the same 4-D mask. Runs alternate; medians. The table
has the ratio of both, and of the engine's step to its step of one row. With ``--read-back``: the engine's step with
and without what PLD+ reads back (states of a layer, rows of attention), in processor time. A minute on a quiet machine;
the last line of stdout is one JSON document.

    python -m benchmarks.step_time [--model DIR] [--prefix 256] [--runs 20] [--read-back]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from benchmarks.support.reporting import BenchmarkReport, table
from engine.protocol import Needs
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.batching_policy import BatchingPolicy
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence, SequenceState
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from engine.tree import EMPTY_TREE, TokenTree
from speculators.pld_plus.speculator import PldPlusConfig, paper_layer

ROWS = (1, 2, 5, 9, 17, 33, 65)  # of a step: the root and its tree


def random_tree(n_nodes: int, vocab: int, rng: random.Random) -> TokenTree:
    """A bushy tree: eight children of the root, every other node below one of the twelve before it."""
    parents = [-1] * min(8, n_nodes)
    parents += [rng.randrange(max(0, node - 12), node) for node in range(len(parents), n_nodes)]
    return TokenTree([rng.randrange(5, vocab) for _ in range(n_nodes)], parents)


def engine_step(
    target: LocalTarget, prompt: list[int], tree: TokenTree, needs: Needs | None = None
) -> Callable[[], object]:
    """One decode step through scheduler and target; the sequence is wound back after each, outside the cache."""
    scheduler = Scheduler(BatchingPolicy(target.info))
    sequence = Sequence.of(0, Request(prompt, SamplingParams(max_tokens=512), max_nodes=4096), needs or Needs())
    scheduler.submit(sequence)
    while sequence.state is not SequenceState.DRAFTING:
        step = scheduler.next_step(0)
        assert step is not None
        scheduler.commit(step, target.step(step), [sequence])
    n_cached, n_tokens = sequence.n_cached, len(sequence.tokens)

    def run() -> None:
        fresh = TokenTree(tree.tokens, tree.parents) if len(tree) else EMPTY_TREE  # derived arrays count
        scheduler.set_tree(sequence, fresh)
        step = scheduler.next_step(1)
        assert step is not None
        scheduler.commit(step, target.step(step), [sequence])
        sequence.n_cached, sequence.keep, sequence.state = n_cached, [], SequenceState.DRAFTING
        del sequence.tokens[n_tokens:]
        sequence.stats.step_tokens.clear()

    return run


def bare_forward(path: Path, prompt: list[int], tree: TokenTree) -> Callable[[], object]:
    """``model.forward`` of root and tree after the prompt; the cache is cropped back after each."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").eval()
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(torch.tensor([prompt]), past_key_values=cache)
    n, width = len(prompt), len(tree) + 1
    ids = torch.tensor([[prompt[-1], *tree.tokens]])
    positions = torch.tensor([[n, *(n + depth for depth in tree.depths)]])
    seen = torch.cat((torch.ones(width, n, dtype=torch.bool), torch.from_numpy(tree.ancestor_mask())), dim=1)
    mask = seen[None, None] if len(tree) else None

    def run() -> None:
        with torch.inference_mode():
            model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
        cache.crop(-width)

    return run


def interleaved(
    first: Callable[[], object],
    second: Callable[[], object],
    runs: int,
    warmup: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:
    """Return the median seconds of each: calls alternate, so that a slow moment of the machine affects both."""
    times: tuple[list[float], list[float]] = ([], [])
    for run in range(warmup + runs):
        for call, kept in zip((first, second), times, strict=True):
            began = clock()
            call()
            if run >= warmup:
                kept.append(clock() - began)
    return statistics.median(times[0]), statistics.median(times[1])


def against_bare_forward(path: Path, runs: int, prefix: int, rng: random.Random) -> list[dict[str, Any]]:
    """A row of the table for every width of a step."""
    target = LocalTarget.load(TargetOptions(str(path)), path)
    prompt = random_prompt(target, prefix, rng)
    rows = []
    one_row = 0.0
    for n_rows in ROWS:
        tree = random_tree(n_rows - 1, target.info.spec.vocab_size, rng)
        ours, bare = interleaved(engine_step(target, list(prompt), tree), bare_forward(path, prompt, tree), runs, 2)
        one_row = one_row or ours
        times = {"engine_ms": ours * 1e3, "over_one_row": ours / one_row, "bare_ms": bare * 1e3, "ratio": ours / bare}
        rows.append({"rows": n_rows} | {name: round(value, 3) for name, value in times.items()})
    return rows


def against_read_back(path: Path, runs: int, prefix: int, rng: random.Random) -> list[dict[str, Any]]:
    """A row for everything that a step of 64 nodes may read back: processor time with it over that without."""
    plain, reading = (LocalTarget.load(TargetOptions(str(path)), path) for _ in range(2))
    spec = plain.info.spec
    layer, heads = paper_layer(spec.n_layers), [(i, j) for i in range(spec.n_layers) for j in range(spec.n_heads)][:50]
    kinds = {
        "state of one layer": Needs(hidden_layer=layer),
        "the same, projected": Needs(hidden_layer=layer, hidden_dims=PldPlusConfig().dims),
        f"attention of {len(heads)} heads": Needs(heads=tuple(heads)),
        "attention of 4 heads": Needs(heads=tuple(heads[:4])),
    }
    prompt, tree = random_prompt(plain, prefix, rng), random_tree(64, spec.vocab_size, rng)
    rows = []
    for kind, needs in kinds.items():
        steps = engine_step(plain, list(prompt), tree), engine_step(reading, list(prompt), tree, needs)
        before, after = interleaved(*steps, runs, 20, time.thread_time)
        times = {"plain_ms": before * 1e3, "with_ms": after * 1e3, "ratio": after / before}
        rows.append({"read_back": kind} | {name: round(value, 3) for name, value in times.items()})
    return rows


def random_prompt(target: LocalTarget, n_tokens: int, rng: random.Random) -> list[int]:
    """Random token ids."""
    return [rng.randrange(5, target.info.spec.vocab_size) for _ in range(n_tokens)]


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=model_path, default=DEFAULT_MODEL, help="(default: %(default)s)")
    parser.add_argument("--prefix", type=int, default=256, help="tokens in the cache (default: 256)")
    parser.add_argument("--runs", type=int, default=20, help="of each, alternating (default: 20)")
    parser.add_argument("--read-back", action="store_true", help="measure what reading inner states back costs instead")
    parser.add_argument("--out", type=Path, help="folder for result.json and tables.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measure = against_read_back if arguments.read_back else against_bare_forward
    rows = measure(arguments.model, arguments.runs, arguments.prefix, random.Random(0))
    shown = table({name: name for name in rows[0]}, rows)
    print(shown)
    document = {"model": arguments.model.name, "prefix": arguments.prefix, "rows": rows}
    return BenchmarkReport(document, shown, failed=False).publish(arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
