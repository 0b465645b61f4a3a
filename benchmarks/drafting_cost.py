"""What does drafting cost? Microseconds of ``propose`` and ``observe`` per request and step, on one core, no model.

The target is a hash (``speculators.testing``), prompt and corpus are random text in its language, composing and
scoring are not timed. Methods that rank by inner states of the target (pld-plus-h, pld-plus-a) get random ones; with
``--vocabulary 100`` the text has few different tokens, so that they rank dozens of occurrences at every step: the hard
case. Some ten seconds per method and context. The last line of stdout is one JSON document.

    python -m benchmarks.drafting_cost --methods spectra,rest --contexts 4096
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import numpy as np
from msgspec.structs import replace
from tqdm import tqdm

from benchmarks.support.reporting import BenchmarkReport, table
from engine.composer import compose
from engine.protocol import Artefacts, Needs, Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.tree import EMPTY_TREE
from retrieval_store.index.index import FixedLibrary, Library
from retrieval_store.snapshots.snapshot import Description
from retrieval_store.snapshots.snapshot_index import open_snapshot
from retrieval_store.snapshots.snapshot_writer import write_snapshot
from speculators.auto.config import AutoConfig
from speculators.method import SpeculatorOptions
from speculators.registry import available, create
from speculators.testing import HashTarget

METHODS = (
    *available(SpeculatorOptions()),
    "rest",
    "spectra-retrieval",
    "pld+spectra-core",
    "pld-plus-h",
    "pld-plus-a",
    "adapld",
)
HEADS = tuple((0, head) for head in range(50))
_SUCCESSORS = 40  # different tokens after one token: about as unpredictable as prose


COLUMNS = ("method", "context", "p50_us", "p99_us", "begin_us", "nodes")


def main() -> int:
    """Measure and print; return the exit status."""
    args = _arguments()
    target = HashTarget(args.vocabulary, _SUCCESSORS)
    with tempfile.TemporaryDirectory() as folder:
        library = _library(target, Path(folder) / "snapshot", args.corpus_tokens)
    options = SpeculatorOptions(retrieval=lambda: library, layer=0, heads=HEADS)
    options = options.with_settings(AutoConfig(retrieval=False))  # as on a server without texts
    cases = [(method, int(context)) for method in args.methods.split(",") for context in args.contexts.split(",")]
    rows = [
        measure(target, method, context, args.steps, args.budget, options)
        for method, context in tqdm(cases, file=sys.stderr)
    ]
    shown = table(dict(zip(COLUMNS, COLUMNS, strict=True)), rows)
    print(shown)
    document = {"budget": args.budget, "steps": args.steps, "rows": rows}
    return BenchmarkReport(document, shown, failed=False).publish(args.out)


def measure(
    target: HashTarget, method: str, n_context: int, n_steps: int, budget: int, options: SpeculatorOptions
) -> dict[str, float | int | str]:
    """Decode ``n_steps`` steps after a prompt of ``n_context`` tokens; times in microseconds."""
    rng = np.random.default_rng(0)
    speculator = create(method, options)
    request = RequestView.of(0, Request(_prompt(target, n_context), SamplingParams()), target.vocab_size)
    start = time.thread_time()
    speculator.begin(request)
    begin = time.thread_time() - start
    seconds = []
    outcome = Outcome((), EMPTY_TREE, artefacts=_artefacts(speculator.needs, n_context - 1, n_context - 1, rng))
    nodes = 0
    for _ in range(n_steps):
        start = time.thread_time()
        speculator.observe(request, outcome)
        branches = speculator.propose(request, budget)
        seconds.append(time.thread_time() - start)
        tree = compose(branches, budget)
        outcome = target.score(request.context.view[-2:].tolist(), tree)
        request.context.extend(outcome.tokens)
        n_new, n_positions = len(outcome.tokens), len(request.context) - 1
        outcome = replace(outcome, artefacts=_artefacts(speculator.needs, n_new, n_positions, rng))
        nodes += len(tree)
    speculator.end(request)
    p50, p99 = np.percentile(seconds, (50, 99)) * 1e6
    return {
        "method": method,
        "context": n_context,
        "p50_us": round(float(p50), 1),
        "p99_us": round(float(p99), 1),
        "begin_us": round(begin * 1e6, 1),
        "nodes": round(nodes / n_steps, 1),
    }


def _artefacts(needs: Needs, n_new: int, n_positions: int, rng: np.random.Generator) -> Artefacts | None:
    """Random states of ``n_new`` positions and attention over ``n_positions``, as far as a speculator needs them."""
    hidden, attention = None, None
    if needs.hidden_layer is not None:
        hidden = rng.standard_normal((n_new, needs.hidden_dims), dtype=np.float32)
    if needs.heads:
        attention = rng.random((len(needs.heads), n_positions), dtype=np.float32)
    return None if hidden is None and attention is None else Artefacts(hidden, attention)


def _library(target: HashTarget, folder: Path, n_tokens: int) -> Library:
    """A snapshot of texts in the target's language, mapped; its folder may go."""
    texts = (_prompt(target, 1000, seed) for seed in range(1, 1 + n_tokens // 1000))
    write_snapshot(texts, folder, Description(tokenizer_hash="", vocab_size=target.vocab_size))
    return FixedLibrary(open_snapshot(folder))


def _prompt(target: HashTarget, n_tokens: int, seed: int = 0) -> list[int]:
    """Text of the target's language that a random token interrupts now and then."""
    rng = Random(seed)
    text = [rng.randrange(target.vocab_size)]
    while len(text) < n_tokens:
        text.append(rng.randrange(min(500, target.vocab_size)) if rng.random() < 0.2 else target.next_token(text))
    return text


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS), help="comma-separated")
    parser.add_argument("--contexts", default="256,1024,4096", help="prompt lengths in tokens, comma-separated")
    parser.add_argument("--steps", type=int, default=1000, help="decode steps per measurement")
    parser.add_argument("--corpus-tokens", type=int, default=1_000_000, help="indexed for the methods that look up")
    parser.add_argument("--vocabulary", type=int, default=32_000, help="different tokens of the text (default: 32000)")
    parser.add_argument("--budget", type=int, default=64, help="nodes per step")
    parser.add_argument("--out", type=Path, help="folder for result.json and tables.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
