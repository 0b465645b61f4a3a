"""What a step pays behind its logits, in processor time: processing rows, drawing and walking, reading ids back.

Random logits of a vocabulary of 128,256; a prompt of 1,000 tokens and 500 of output for penalties. Walks are down a
tree of 64 nodes that the target hardly ever follows, level by level and with all rows drawn at once: the second is the
way of a device, and this table says why a CPU does not take it. Half a minute; the last line of stdout is one JSON
document.

    python -m benchmarks.sampling_cost [--vocabulary 128256] [--runs 15]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from app.reporting.report import as_line
from benchmarks.support.reporting import heading, row
from engine.device import fetch
from engine.protocol import Needs
from engine.sampling.history import History
from engine.sampling.params import SamplingParams
from engine.sampling.processors import process
from engine.stage.logit_readback import ReadBack
from engine.stage.logit_rows import logit_rows
from engine.step import Work
from engine.tree import TokenTree
from engine.upload import Upload
from engine.verify.all_rows import AllRowDraws
from engine.verify.batch import Walk, WalkItem, verify
from engine.verify.walk import walk_trees

N_NODES = 64
Timed = tuple[str, Callable[[], object]]


def kinds(vocab: int, rng: random.Random) -> dict[str, SamplingParams]:
    """What requests ask for, by name."""
    biases = {rng.randrange(vocab): 1.0 for _ in range(1024)}
    return {
        "greedy": SamplingParams(),
        "temperature 0.8": SamplingParams(temperature=0.8, seed=1),
        "top-p 0.9": SamplingParams(temperature=0.8, top_p=0.9, seed=1),
        "1,024 biases": SamplingParams(logit_bias=biases),
        "penalties": SamplingParams(repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.3),
    }


def draws(logits: torch.Tensor, params: SamplingParams, tree: TokenTree, rng: random.Random) -> list[Timed]:
    """All rows processed, the tree walked by level, the tree walked with all rows drawn."""
    vocab = logits.shape[-1]
    prompt, output = ([rng.randrange(vocab) for _ in range(n)] for n in (1000, 500))

    def item() -> WalkItem:
        return WalkItem(tree, 0, params, History(prompt, output) if params.has_penalties else None, 1500)

    by_level, at_once, history = item(), item(), History(prompt, output)

    def drawn() -> None:
        upload = Upload(logits.device)
        draws = AllRowDraws([(at_once, Walk())], vocab, upload)
        upload.send()
        draws.receive(iter(fetch(draws.begin(logits))))
        walk_trees(draws)

    n = len(logits)
    return [
        ("65 rows", lambda: process(logits, [params] * n, [history] * n)),
        ("by level", lambda: verify(logits, [by_level])),
        ("at once", drawn),
    ]


def read_backs(logits: torch.Tensor, tree: TokenTree) -> list[Timed]:
    """Sixteen ids with log-probabilities behind the nodes of a tree, and behind the roots of 16 sequences."""

    def read(works: list[Work]) -> None:
        upload = Upload(logits.device)
        needs = [Needs(node_top_k=16, top_logprobs=True)] * len(works)
        rows = [logit_rows(work, need) for work, need in zip(works, needs, strict=True)]
        back = ReadBack(works, needs, rows, [i * len(rows[0].rows) for i in range(len(rows))], upload)
        upload.send()
        back.finish(iter(fetch(back.begin(logits))))

    roots = [Work(i, 100, [5], TokenTree([], [])) for i in range(16)]
    return [("one tree", lambda: read([Work(0, 100, [5], tree)])), ("16 roots", lambda: read(roots))]


def milliseconds(call: Callable[[], object], runs: int) -> float:
    """Median processor time of a call."""
    times = []
    for _ in range(runs + 2):
        began = time.thread_time()
        call()
        times.append((time.thread_time() - began) * 1e3)
    return statistics.median(times[2:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=128_256, help="ids (default: 128256)")
    parser.add_argument("--runs", type=int, default=15, help="of each (default: 15)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rng, vocab = random.Random(0), arguments.vocabulary
    logits = torch.randn(N_NODES + 1, vocab, generator=torch.Generator().manual_seed(0)) * 4.0
    parents = [(node - 1) // 2 if node else -1 for node in range(N_NODES)]
    tree = TokenTree([rng.randrange(vocab) for _ in parents], parents)
    document: dict[str, Any] = {"vocabulary": vocab, "ms": {}}
    print(heading(("request", "65 rows, ms", "by level, ms", "at once, ms")), flush=True)
    for kind, params in kinds(vocab, rng).items():
        found = {name: milliseconds(call, arguments.runs) for name, call in draws(logits, params, tree, rng)}
        document["ms"][kind] = found
        print(row((kind, *(f"{value:.3f}" for value in found.values()))), flush=True)
    backs = {name: milliseconds(call, arguments.runs) for name, call in read_backs(logits, tree)}
    document["ms"]["read-back"] = backs
    print(f"16 ids read back: {', '.join(f'{name} {value:.3f} ms' for name, value in backs.items())}")
    print(as_line(document))


if __name__ == "__main__":
    main()
