"""Host time of planning one GPU step: attention plan and answer plan, in milliseconds of CPU time of one thread.

No GPU is needed: planning is the part of a step that the CPU does before the first launch. Each row is one kind of
step: sequences with one token tree each. Columns, each the minimum over all runs:

* ``plan``: `make_plan`, parents and blocks given as int32 arrays;
* ``answer``: `StepAnswer`, which rows are drawn and read back;
* ``sum``: of both;
* ``step``: `pack_plan` and `StepAnswer` for the works of a step whose trees have just arrived.

Some seconds. The last line of stdout is one JSON document.

    python -m benchmarks.plan_time [--context 2048] [--runs 300]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from app.reporting.report import as_line
from benchmarks.gpu.measuring.steps import bushy
from benchmarks.support.reporting import heading, row
from engine.cuda.plan.items import PathWork
from engine.cuda.plan.layout import BUCKETS
from engine.cuda.plan.plan import PlanShape, make_plan
from engine.kv.arena import BlockTable, KVArena
from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.stage.answer import StageSequence, StepAnswer
from engine.stage.packing import Span, pack_plan
from engine.step import SequenceStart, Work
from engine.tree import TokenTree
from engine.upload import Upload

STEPS = ((1, 0), (1, 63), (8, 63), (32, 0), (32, 15))  # sequences, nodes of each one's tree
TEMPERATURES = (0.0, 0.8)
BLOCK_SIZE, GROUPS, VOCAB = 64, 4, 128_256  # of Llama 3 8B
SHAPE = PlanShape.of({None}, GROUPS, BLOCK_SIZE, 10**6 - 1)
CPU = torch.device("cpu")
# What planning reads of an executor's answers.
ANSWERS: Any = SimpleNamespace(vocab=VOCAB, buckets=BUCKETS, device=CPU, logits=None)
SHARD: Any = None  # read only where no executor answers


class PlannedSteps:
    """Steps of ``n`` sequences with ``n_context`` committed tokens and a tree of ``n_nodes`` each."""

    def __init__(self, n: int, n_nodes: int, n_context: int, temperature: float) -> None:
        self._tree, self._n_context, self._numbers = bushy(n_nodes, VOCAB), n_context, range(n)
        n_blocks = -(-(n_context + 1 + n_nodes) // BLOCK_SIZE)
        self._tables = {number: BlockTable(BLOCK_SIZE) for number in self._numbers}
        for number, table in self._tables.items():
            table.extend(range(number * n_blocks, (number + 1) * n_blocks))
        params = SamplingParams(max_tokens=1 << 20, temperature=temperature, seed=1)
        starts = [SequenceStart(number, params, n_context, Needs()) for number in self._numbers]
        self._sequences = [StageSequence(start, []) for start in starts]
        self._arena = KVArena(1, 1, BLOCK_SIZE, 1, 1, torch.float32, CPU)
        self._tokens = [1] * (n * (1 + n_nodes))
        self._spans = [Span(number * (1 + n_nodes), 1 + n_nodes) for number in self._numbers]
        parents = np.array(self._tree.parents, np.int32) if n_nodes else None
        blocks = [np.array(table.blocks, np.int32) for table in self._tables.values()]
        self._paths = [PathWork(n_context, 1 + n_nodes, parents, one) for one in blocks]

    def works(self) -> list[Work]:
        """Works with new trees, of which nothing has been computed yet."""
        tree = self._tree
        trees = [TokenTree(tree.tokens, tree.parents) for _ in self._numbers]
        return [
            Work(i, self._n_context, [1], one, max_new=1 << 20) for i, one in zip(self._numbers, trees, strict=True)
        ]

    def plan(self, works: list[Work]) -> None:
        """Plan attention."""
        make_plan(self._paths, SHAPE, self._tokens)

    def answer(self, works: list[Work]) -> None:
        """Plan the answer."""
        StepAnswer(works, self._spans, self._sequences, Upload(CPU), SHARD, ANSWERS, None)

    def step(self, works: list[Work]) -> None:
        """Plan both from works."""
        upload = Upload(CPU)
        packed = pack_plan(works, self._tables, self._arena, upload, SHAPE)
        StepAnswer(works, packed.spans, self._sequences, upload, SHARD, ANSWERS, None)


def least_ms(run: Callable[[list[Work]], None], works: Callable[[], list[Work]], runs: int) -> float:
    """Milliseconds of CPU time of the fastest of several runs, each with new works."""
    least = float("inf")
    for _ in range(runs):
        new = works()
        began = time.thread_time()
        run(new)
        least = min(least, time.thread_time() - began)
    return least * 1e3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=2048, help="committed tokens of each sequence (default: 2048)")
    parser.add_argument("--runs", type=int, default=300, help="per figure (default: 300)")
    arguments = parser.parse_args()
    rows = []
    print(heading(("sequences x nodes", "temperature", "plan", "answer", "sum", "step")), flush=True)
    for n, n_nodes in STEPS:
        for temperature in TEMPERATURES:
            steps = PlannedSteps(n, n_nodes, arguments.context, temperature)
            kinds = {"plan_ms": steps.plan, "answer_ms": steps.answer, "step_ms": steps.step}
            ms = {name: least_ms(run, steps.works, arguments.runs) for name, run in kinds.items()}
            rows.append({"sequences": n, "nodes": n_nodes, "temperature": temperature, **ms})
            times = ms["plan_ms"], ms["answer_ms"], ms["plan_ms"] + ms["answer_ms"], ms["step_ms"]
            print(row((f"{n} x {n_nodes}", temperature, *(f"{one:.3f}" for one in times))), flush=True)
    print(as_line({"context": arguments.context, "rows": rows}))


if __name__ == "__main__":
    main()
