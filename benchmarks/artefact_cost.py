"""What reading artefacts back costs a step (PLD+): a decode step with and without, batch 1, fp32, one thread.

Rows of the table: nothing read back; the state of one layer, whole and projected; attention rows of heads. Runs
alternate; medians of the processor time of the engine's step (schedule, forward, verify, read back, commit) on one
thread, so that a busy machine disturbs little; drafting apart. Last line: one JSON document.

    python -m benchmarks.artefact_cost [--model DIR] [--prefixes 256,1024,3072] [--nodes 64] [--heads 50]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from app.demo.paths import DEMO_TARGET
from engine.protocol import Needs
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence, State
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from engine.tree import TokenTree
from speculators.pld_plus.speculator import PldPlusConfig, paper_layer


def decode_step(target: LocalTarget, prompt: list[int], draft: list[int], needs: Needs) -> Callable[[], object]:
    """One decode step of a chain behind a prompt; the sequence is wound back after each, outside the cache."""
    scheduler = Scheduler(target.info)
    params = SamplingParams(max_tokens=512)
    sequence = Sequence.of(0, Request(list(prompt), params, max_nodes=64), needs)
    scheduler.submit(sequence)
    while sequence.state is not State.DRAFTING:
        step = scheduler.next_step(0)
        assert step is not None
        scheduler.commit(step, target.step(step), [sequence])
    n_cached, n_tokens = sequence.n_cached, len(sequence.tokens)

    def run() -> None:
        scheduler.set_tree(sequence, TokenTree(draft, range(-1, len(draft) - 1)))
        step = scheduler.next_step(1)
        assert step is not None
        scheduler.commit(step, target.step(step), [sequence])
        sequence.n_cached, sequence.keep, sequence.state = n_cached, [], State.DRAFTING
        del sequence.tokens[n_tokens:]
        sequence.stats.step_tokens.clear()

    return run


def interleaved(first: Callable[[], object], second: Callable[[], object], runs: int) -> tuple[float, float]:
    """Median processor seconds of each."""
    times: tuple[list[float], list[float]] = ([], [])
    for run in range(runs + runs // 10):
        for call, kept in zip((first, second), times, strict=True):
            began = time.thread_time()
            call()
            if run >= runs // 10:  # warm
                kept.append(time.thread_time() - began)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEMO_TARGET, help="checkpoint directory (default: demo)")
    parser.add_argument("--prefixes", default="256,1024,3072", help="tokens in the cache (default: 256,1024,3072)")
    parser.add_argument("--nodes", type=int, default=64, help="drafted nodes (default: 64)")
    parser.add_argument("--heads", type=int, default=50, help="heads, at most the model's (default: 50)")
    parser.add_argument("--runs", type=int, default=100, help="of each, alternating (default: 100)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    options = TargetOptions(str(arguments.model))
    targets = [LocalTarget.load(options, arguments.model) for _ in range(2)]  # one without, one with artefacts
    spec = targets[0].info.spec
    layer = paper_layer(spec.n_layers)
    every = [(place // spec.n_heads, place % spec.n_heads) for place in range(spec.n_layers * spec.n_heads)]
    kinds = {
        "state of one layer": Needs(hidden_layer=layer),
        "the same, projected": Needs(hidden_layer=layer, hidden_dims=PldPlusConfig().dims),
        f"attention of {min(arguments.heads, len(every))} heads": Needs(heads=tuple(every[: arguments.heads])),
        "attention of 4 heads": Needs(heads=tuple(every[:4])),
    }
    rng = random.Random(0)
    results = []
    print("| cached tokens | read back | plain step, ms | with artefacts, ms | more |\n|---|---|---|---|---|")
    for prefix in map(int, arguments.prefixes.split(",")):
        prompt = [rng.randrange(5, spec.vocab_size) for _ in range(prefix)]
        draft = [rng.randrange(5, spec.vocab_size) for _ in range(arguments.nodes)]
        for kind, needs in kinds.items():
            plain, more = interleaved(
                decode_step(targets[0], prompt, draft, Needs()),
                decode_step(targets[1], prompt, draft, needs),
                arguments.runs,
            )
            print(
                f"| {prefix} | {kind} | {plain * 1e3:.2f} | {more * 1e3:.2f} | {100 * (more / plain - 1):+.1f} % |",
                flush=True,
            )
            results.append({"prefix": prefix, "read_back": kind, "plain_ms": plain * 1e3, "with_ms": more * 1e3})
            for target in targets:
                for stage in target._stages:
                    stage.reset()
    print(json.dumps({"model": arguments.model.name, "nodes": arguments.nodes, "results": results}))


if __name__ == "__main__":
    main()
