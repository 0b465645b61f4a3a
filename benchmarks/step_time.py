"""Engine step against the bare model forward of the same width, mask and prefix (batch 1, fp32, one thread).

The engine's side is everything a decode step does but drafting: schedule, pack, run the layers, verify, commit. The
bare side is ``model.forward`` with sdpa, a ``DynamicCache`` and the same 4-D mask. Runs alternate; medians; the table
is the ratio. Last line: one JSON document. Leave the machine alone while it runs.

    python -m benchmarks.step_time [--model DIR] [--prefix 256] [--runs 200]
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from app.demo.paths import DEMO_TARGET
from benchmarks.timing import interleaved
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence, State
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from engine.tree import EMPTY_TREE, TokenTree


def random_tree(n_nodes: int, vocab: int, rng: random.Random) -> TokenTree:
    """A bushy tree: eight children of the root, every other node below one of the twelve before it."""
    parents = [-1] * min(8, n_nodes)
    parents += [rng.randrange(max(0, node - 12), node) for node in range(len(parents), n_nodes)]
    return TokenTree([rng.randrange(5, vocab) for _ in range(n_nodes)], parents)


def engine_step(target: LocalTarget, prompt: list[int], tree: TokenTree) -> Callable[[], object]:
    """One decode step through scheduler and target; the sequence is wound back after each, outside the cache."""
    scheduler = Scheduler(target.info)
    sequence = Sequence.of(0, Request(prompt, SamplingParams(max_tokens=512), max_nodes=4096))
    scheduler.submit(sequence)
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
        sequence.n_cached, sequence.keep, sequence.state = n_cached, [], State.DRAFTING
        del sequence.tokens[n_tokens:]
        sequence.stats.step_tokens.clear()

    return run


def bare_forward(path: Path, prompt: list[int], tree: TokenTree) -> Callable[[], object]:
    """``model.forward`` of root and tree behind the prompt; the cache is cropped back after each."""
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEMO_TARGET, help="checkpoint directory (default: demo)")
    parser.add_argument("--prefix", type=int, default=256, help="tokens in the cache (default: 256)")
    parser.add_argument("--runs", type=int, default=200, help="of each, alternating (default: 200)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    target = LocalTarget.load(TargetOptions(str(arguments.model)), arguments.model)
    rng = random.Random(0)
    vocab = target.info.spec.vocab_size
    prompt = [rng.randrange(5, vocab) for _ in range(arguments.prefix)]
    results = {}
    print("| nodes | engine step, ms | bare forward, ms | ratio |\n|---|---|---|---|")
    for n_nodes in (0, 1, 16, 64):
        tree = random_tree(n_nodes, vocab, rng)
        ours, bare = interleaved(
            engine_step(target, list(prompt), tree), bare_forward(arguments.model, prompt, tree), arguments.runs, 20
        )
        results[n_nodes] = {"engine_ms": ours * 1e3, "bare_ms": bare * 1e3, "ratio": ours / bare}
        print(f"| {n_nodes} | {ours * 1e3:.3f} | {bare * 1e3:.3f} | {ours / bare:.3f} |", flush=True)
    print(json.dumps({"model": arguments.model.name, "prefix": arguments.prefix, "nodes": results}))


if __name__ == "__main__":
    main()
