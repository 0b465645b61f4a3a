"""Measures the step times of a target at start, for ``engine.step_cost``."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from functools import partial

import numpy as np

from engine.protocol import Needs
from engine.sampling.params import SamplingParams
from engine.step import SequenceStart, Step, StepResult, Work
from engine.step_cost import MEASURED_CONTEXT, Curve, StepCosts
from engine.target_model.info import Target, TargetInfo
from engine.tree import ROOT, TokenTree

GRID = {  # batch size -> nodes per sequence
    1: (0, 1, 2, 4, 8, 16, 32, 64, 128),
    2: (0, 4, 32),
    4: (0, 2, 8, 32),
    8: (0, 2, 16),
    16: (0, 1, 4, 16),
}
PROMPT_ROWS = (1, 64, 256, 512)  # rows of a chunk
FAR = 2048  # tokens before a chunk that is measured far from the beginning of its text
REPEATS = 8
LONG_ENOUGH = 1.0  # seconds per curve: a slow target's steps are measured once, after a first one that does not count
TOO_LONG = (
    0.25  # seconds: a step that takes so long is measured once, and larger ones are not: rows cost the same there
)
READ_BACK = Needs(node_top_k=16, top_logprobs=True)
READ_BACK_PROMPT = Needs(prompt_top_k=16, top_logprobs=True)
NOTHING_READ = 0  # among rows: a step of which nothing is read back, without nodes or with a chunk of UNREAD_ROWS
UNREAD_ROWS = PROMPT_ROWS[1]
FIRST_SEQ = 1 << 40  # sequence numbers from here on belong to no request


def measurement(info: TargetInfo, needs: Needs | None = None) -> Generator[Step, float, StepCosts]:
    """Yields the steps to run, is sent the seconds each took, and returns the costs.

    Args:
        info: of the target.
        needs: what the sequences read back, which takes time too; by default what the sources of ``auto`` need.

    Trees are measured with ``MEASURED_CONTEXT`` tokens of context, chunks of prompt at the beginning of a text and far
    from it, where attention reads more keys. Times do not depend on the values of the keys, so none are written first.

    A generator, so that a target in this process and a pipeline behind channels are measured by the same code. Batches
    that the cache cannot hold are left out. The target forgets all sequences with the last step.
    """
    curves: dict[int, Curve] = {}
    prompts: dict[int, Curve] = {}
    plain: dict[int, float] = {}
    prompt_row = 0.0
    step_id = 0
    grids = {batch: [n for n in grid if _fits(info, batch, n)] for batch, grid in GRID.items()}
    fitting = [batch for batch, nodes in grids.items() if nodes]
    for batch in fitting:
        nodes = grids[batch]
        yield _begin(info, step_id, batch, _blocks(info, max(nodes)), needs or READ_BACK)
        steps = {batch * (n + 1): partial(_decode, info, batch, n, True) for n in nodes}
        if batch in (fitting[0], fitting[-1]):
            steps = {NOTHING_READ: partial(_decode, info, batch, 0, False)} | steps
        step_id, taken = yield from _times(step_id + 1, steps)
        if NOTHING_READ in taken:
            plain[batch] = min(taken.pop(NOTHING_READ), *taken.values())
        curves[batch] = _rising(taken)
        yield Step(step_id, [], ends=[FIRST_SEQ + i for i in range(batch)])
        step_id += 1
    for context in _contexts(info):
        chunks = [n for n in PROMPT_ROWS if context + n <= _room(info)]
        n_blocks = -(-min(_room(info), context + PROMPT_ROWS[-1]) // info.block_size)
        yield _begin(info, step_id, 1, n_blocks, needs or READ_BACK_PROMPT)
        steps = {n: partial(_chunk, info, context, n, True) for n in chunks if n <= UNREAD_ROWS}
        if context == 0 and UNREAD_ROWS in chunks:  # not behind the largest, which leaves its caches cold
            steps[NOTHING_READ] = partial(_chunk, info, context, UNREAD_ROWS, False)
        steps |= {n: partial(_chunk, info, context, n, True) for n in chunks if n > UNREAD_ROWS}
        step_id, taken = yield from _times(step_id + 1, steps)
        unread = taken.pop(NOTHING_READ, None)
        prompts[context] = _rising(taken)
        if unread is not None:
            prompt_row = max(taken[UNREAD_ROWS] - unread, 0.0) / UNREAD_ROWS
        yield Step(step_id, [], ends=[FIRST_SEQ])
        step_id += 1
    return StepCosts(curves, prompts, plain, prompt_row)


def _times(
    step_id: int, points: Mapping[int, Callable[[int], Step]]
) -> Generator[Step, float, tuple[int, dict[int, float]]]:
    """Times of steps, ascending; also returns the next step's number."""
    first = next(iter(points))
    taken: dict[int, list[float]] = {}
    spent = 0.0
    for turn in range(REPEATS + 1):  # in turns, so that a busy moment of the machine does not hit one point only
        if turn > 0 and spent < LONG_ENOUGH:
            spent += yield points[first](step_id)  # the largest one leaves caches cold: that is not to count
            step_id += 1
        for rows, make in points.items():
            if turn > 0 and (rows not in taken or (taken[rows][0] > TOO_LONG and rows != first)):
                break
            seconds = yield make(step_id)
            step_id += 1
            spent += seconds
            # The first one found memory, threads and caches unprepared.
            taken[rows] = [*taken[rows], seconds] if turn > 1 else [seconds]
            if turn == 0 and rows != first and seconds > TOO_LONG:
                break
        if turn > 0 and spent > LONG_ENOUGH:
            break
    return step_id, {rows: _usual(seconds) for rows, seconds in taken.items()}


def _usual(taken: list[float]) -> float:
    """The third best of eight: the best is one that found everything just right, the others met hiccups."""
    return sorted(taken)[len(taken) // 4]


def _rising(taken: Mapping[int, float]) -> Curve:
    """Times by rows, ascending, as a curve: what makes a step slower than a larger one is noise."""
    rising = np.minimum.accumulate(list(taken.values())[::-1])[::-1]
    return tuple(taken), tuple(rising.tolist())


def measure(target: Target, needs: Needs | None = None) -> StepCosts:
    """Measure a target of this process; takes at most about 280 steps."""
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
    return max(1, min(MEASURED_CONTEXT, info.max_model_len // 2))


def _fits(info: TargetInfo, batch: int, n_nodes: int) -> bool:
    return batch * _blocks(info, n_nodes) <= info.n_blocks


def _begin(info: TargetInfo, step_id: int, batch: int, n_blocks: int, needs: Needs) -> Step:
    """Sequences of one token each, with ``n_blocks`` blocks."""
    params, starts, work = SamplingParams(max_tokens=1 << 30), [], []
    for i in range(batch):
        blocks = list(range(i * n_blocks, (i + 1) * n_blocks))
        starts.append(SequenceStart(FIRST_SEQ + i, params, 1, needs))
        work.append(Work(FIRST_SEQ + i, 0, [i % info.spec.vocab_size], new_blocks=blocks))
    return Step(step_id, work, starts)


def _decode(info: TargetInfo, batch: int, n_nodes: int, reads_back: bool, step_id: int) -> Step:
    """A tree of ``n_nodes`` for every sequence, two children to a node, in the same place as the last one."""
    vocab = info.spec.vocab_size
    tokens = [(11 * node + step_id) % vocab for node in range(n_nodes)]
    tree = TokenTree(tokens, [ROOT if node == 0 else (node - 1) // 2 for node in range(n_nodes)])
    length = _context(info)
    root = [step_id % vocab]
    return Step(step_id, [Work(FIRST_SEQ + i, length, root, tree, reads_back=reads_back) for i in range(batch)])


def _room(info: TargetInfo) -> int:
    """Tokens of the longest text that can be in the cache."""
    return min(info.max_model_len, info.n_blocks * info.block_size)


def _contexts(info: TargetInfo) -> list[int]:
    """Tokens before the chunks: none, and up to ``FAR`` if the cache has room for them."""
    far = min(FAR, _room(info) - PROMPT_ROWS[-1])
    return [0, far] if far >= PROMPT_ROWS[-1] else [0]


def _chunk(info: TargetInfo, context: int, n_rows: int, reads_back: bool, step_id: int) -> Step:
    """A chunk of ``n_rows`` behind ``context`` tokens, in the same place as the last one."""
    tokens = [(5 * place + step_id) % info.spec.vocab_size for place in range(n_rows)]
    return Step(step_id, [Work(FIRST_SEQ, context, tokens, reads_back=reads_back)])
