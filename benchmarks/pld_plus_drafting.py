"""What drafting of PLD+ costs: processor microseconds of propose + observe per request and step, without a model.

``benchmarks.drafting_cost`` has no inner states to give, so these are made up here: random states and attention. The
text is random, of few different tokens, so that hundreds of occurrences are to be ranked at every step: the hard case.
The last line is one JSON document. Run: ``python -m benchmarks.pld_plus_drafting``.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from engine.protocol import Artefacts, Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.tree import EMPTY_TREE
from speculators.pld_plus.speculator import PldPlusConfig
from speculators.registry import SpeculatorOptions, create

CHUNK = 512  # prompt tokens per outcome
N_HEADS = 50
OPTIONS = SpeculatorOptions(pld_plus=PldPlusConfig(layer=0, heads=tuple((0, head) for head in range(N_HEADS))))


def measure(method: str, n_context: int, n_tokens: int, n_steps: int) -> dict[str, float | int | str]:
    """Decode ``n_steps`` random tokens, one a step, of ``n_tokens`` different ones; times in microseconds."""
    rng = np.random.default_rng(0)
    speculator = create(method, OPTIONS)
    prompt = rng.integers(0, n_tokens, n_context).tolist()
    request = RequestView.of(0, Request(prompt, SamplingParams(max_tokens=n_steps + 1)), n_tokens)
    start = time.thread_time()
    speculator.begin(request)
    begin = time.thread_time() - start
    for first in range(0, n_context - 1, CHUNK):
        n = min(CHUNK, n_context - 1 - first)
        states = Artefacts(hidden=rng.standard_normal((n, OPTIONS.pld_plus.dims), dtype=np.float32))
        speculator.observe(request, Outcome((), EMPTY_TREE, prompt_start=first, artefacts=states))
    seconds = []
    n_drafted = 0
    for _ in range(n_steps):
        token = int(rng.integers(0, n_tokens))
        request.context.extend([token])
        states = Artefacts(
            rng.standard_normal((1, OPTIONS.pld_plus.dims), dtype=np.float32),
            rng.random((N_HEADS, len(request.context) - 1), dtype=np.float32),
        )
        outcome = Outcome([token], EMPTY_TREE, artefacts=states)
        start = time.thread_time()
        speculator.observe(request, outcome)
        branches = speculator.propose(request, 64)
        seconds.append(time.thread_time() - start)
        n_drafted += bool(branches)
    speculator.end(request)
    p50, p99 = np.percentile(seconds, (50, 99)) * 1e6
    return {
        "method": method,
        "context": n_context,
        "occurrences": n_context // n_tokens,
        "p50_us": round(float(p50), 1),
        "p99_us": round(float(p99), 1),
        "begin_us": round(begin * 1e6, 1),
        "steps_with_draft": round(n_drafted / n_steps, 3),
    }


def main() -> None:
    """Measure, print a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", default="256,1024,4096", help="prompt lengths in tokens, comma-separated")
    parser.add_argument("--steps", type=int, default=1000, help="decode steps per measurement")
    arguments = parser.parse_args()
    print(f"{'method':<12}{'context':>8}{'occurrences':>13}{'p50 us':>9}{'p99 us':>9}{'begin us':>10}")
    results = []
    for method in ("pld-plus-h", "pld-plus-a"):
        for context in map(int, arguments.contexts.split(",")):
            for n_tokens in (100, 8):
                row = measure(method, context, n_tokens, arguments.steps)
                results.append(row)
                print(
                    f"{method:<12}{context:>8}{row['occurrences']:>13}{row['p50_us']:>9.1f}{row['p99_us']:>9.1f}"
                    f"{row['begin_us']:>10.0f}"
                )
    print(json.dumps({"benchmark": "pld_plus_drafting", "steps": arguments.steps, "results": results}))


if __name__ == "__main__":
    main()
