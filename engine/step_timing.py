"""Measures the step times of a target at start, for ``engine.step_cost``."""

from __future__ import annotations

import time
from collections.abc import Generator

import numpy as np

from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.step import SequenceStart, Step, StepResult, Work
from engine.step_cost import StepCosts
from engine.target import Target, TargetInfo
from engine.tree import ROOT, TokenTree

CONTEXT = 256  # tokens before every tree
GRID = {1: (0, 1, 2, 4, 8, 16, 32, 64, 128), 4: (0, 2, 8, 32), 16: (0, 1, 4, 16)}  # batch size -> nodes per sequence
REPEATS = 8
LONG_ENOUGH = 2.0  # seconds per batch size: a slow target's steps are measured once, after one for nothing
READ_BACK = Needs(node_top_k=16, top_logprobs=True)
FIRST_SEQ = 1 << 40  # numbers no request has


def measurement(info: TargetInfo, needs: Needs | None = None) -> Generator[Step, float, StepCosts]:
    """Yields the steps to run, wants the seconds each took, returns the costs.

    Args:
        info: of the target.
        needs: what the sequences read back, which takes time too; by default what the sources of ``auto`` want.

    A generator, so that a target in this process and a pipeline behind channels are measured by the same code. Batches
    that the cache cannot hold are left out. The target forgets all sequences with the last step.
    """
    step_id = 0
    curves: dict[int, tuple[tuple[int, ...], tuple[float, ...]]] = {}
    for batch, grid in GRID.items():
        nodes = [n for n in grid if _fits(info, batch, n)]
        if not nodes:
            continue
        yield _prefill(info, step_id, batch, max(nodes), needs or READ_BACK)
        taken, spent = [float("inf")] * len(nodes), 0.0
        for turn in range(REPEATS + 1):  # in turns, so that a busy moment of the machine does not hit one point only
            for i in reversed(range(len(nodes))):
                step_id += 1
                seconds = yield _decode(info, step_id, batch, nodes[i])
                spent += seconds
                if turn > 0:  # the first one found memory, threads and caches unprepared
                    taken[i] = min(taken[i], seconds)
            if turn > 0 and spent > LONG_ENOUGH:
                break
        step_id += 1
        yield Step(step_id, [], ends=[FIRST_SEQ + i for i in range(batch)])
        step_id += 1
        rising = np.minimum.accumulate(taken[::-1])[::-1]  # noise only adds: no step is slower than a larger one
        curves[batch] = (tuple(batch * (n + 1) for n in nodes), tuple(rising.tolist()))
    return StepCosts(curves)


def measure(target: Target, needs: Needs | None = None) -> StepCosts:
    """Measure a target of this process; takes about 160 steps."""
    steps = measurement(target.info, needs)
    taken = 0.0
    step = next(steps)
    while True:
        began = time.perf_counter()
        result: StepResult = target.step(step)
        assert not result.error, result.error
        taken = time.perf_counter() - began
        try:
            step = steps.send(taken)
        except StopIteration as done:
            costs: StepCosts = done.value
            return costs


def _blocks(info: TargetInfo, n_nodes: int) -> int:
    """KV blocks of one sequence with its largest tree."""
    return -(-(_context(info) + 1 + n_nodes) // info.block_size)


def _context(info: TargetInfo) -> int:
    return max(1, min(CONTEXT, info.max_model_len // 2))


def _fits(info: TargetInfo, batch: int, n_nodes: int) -> bool:
    return batch * _blocks(info, n_nodes) <= info.n_blocks


def _prefill(info: TargetInfo, step_id: int, batch: int, n_nodes: int, needs: Needs) -> Step:
    """Sequences with a context each, and room for their largest tree."""
    n_blocks, length = _blocks(info, n_nodes), _context(info)
    params = SamplingParams(max_tokens=1 << 30)
    starts, work = [], []
    for i in range(batch):
        tokens = [(7 * i + 3 * place) % info.spec.vocab_size for place in range(length)]
        blocks = list(range(i * n_blocks, (i + 1) * n_blocks))
        starts.append(SequenceStart(FIRST_SEQ + i, params, length, needs))
        work.append(Work(FIRST_SEQ + i, 0, tokens, new_blocks=blocks))
    return Step(step_id, work, starts)


def _decode(info: TargetInfo, step_id: int, batch: int, n_nodes: int) -> Step:
    """A tree of ``n_nodes`` for every sequence, two children to a node, in the same place as the last one."""
    vocab = info.spec.vocab_size
    tokens = [(11 * node + step_id) % vocab for node in range(n_nodes)]
    tree = TokenTree(tokens, [ROOT if node == 0 else (node - 1) // 2 for node in range(n_nodes)])
    length = _context(info)
    return Step(step_id, [Work(FIRST_SEQ + i, length, [step_id % vocab], tree) for i in range(batch)])
