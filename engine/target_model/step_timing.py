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
    16: (0, 1, 4, 8, 16),
    64: (0, 1, 2, 3, 7),  # as many rows as the largest prompt chunk; a GPU is limited by arithmetic from 200 on
}
LARGEST = max(GRID)  # skipped on a target whose smaller batches already take TOO_LONG
PROMPT_ROWS = (1, 64, 256, 512)  # rows of a chunk
FAR = 2048  # tokens of context of a chunk far from the beginning of its text
REPEATS = 8
LONG_ENOUGH = 1.0  # seconds per curve; a slow target's steps are measured once, after a warm-up
TOO_LONG = 0.25  # seconds; such a step is measured once, and larger ones never, because their rows cost the same
READ_BACK = Needs(node_top_k=16, top_logprobs=True)
READ_BACK_PROMPT = Needs(prompt_top_k=16, top_logprobs=True)
NOTHING_READ = 0  # key among rows: a step without read-back, without nodes or with a chunk of UNREAD_ROWS
UNREAD_ROWS = PROMPT_ROWS[1]
FIRST_SEQ = 1 << 40  # sequence numbers from here on belong to no request


def measurement(info: TargetInfo, needs: Needs | None = None) -> Generator[Step, float, StepCosts]:
    """Yields the steps to run, is sent the seconds each took, and returns the costs.

    Args:
        info: of the target.
        needs: outputs that the sequences read back, which takes time too; None: those of the sources of ``auto``.

    Trees are measured with ``MEASURED_CONTEXT`` tokens of context, chunks of prompt at the beginning of a text and far
    from it, where attention reads more keys. No keys are written first: times do not depend on their values, and
    different tokens alone give rows different experts.

    A generator, so that a target in this process and a pipeline behind channels are measured by the same code. Batches
    that the cache cannot hold are left out. The last step ends all sequences.
    """
    curves: dict[int, Curve] = {}
    prompts: dict[int, Curve] = {}
    plain: dict[int, float] = {}
    prompt_row = 0.0
    step_id = 0
    grids = {batch: [n for n in grid if _fits(info, batch, n)] for batch, grid in GRID.items()}
    fitting = [batch for batch, nodes in grids.items() if nodes]
    for batch in fitting:
        if batch == LARGEST and max(seconds[0] for _, seconds in curves.values()) > TOO_LONG:
            break
        nodes = grids[batch]
        yield _begin(info, step_id, batch, _blocks(info, max(nodes)), needs or READ_BACK)
        steps = {batch * (n + 1): partial(_decode, info, batch, n, True) for n in nodes}
        if batch in (fitting[0], *fitting[-2:]):  # of the last two, the larger may be skipped
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
        if context == 0 and UNREAD_ROWS in chunks:  # not after the largest, which leaves caches cold
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
    """Return the next step's number and the times of steps by rows, ascending."""
    first = next(iter(points))
    taken: dict[int, list[float]] = {}
    spent = 0.0
    for turn in range(REPEATS + 1):  # in turns, so a busy moment of the machine affects all points
        if turn > 0 and spent < LONG_ENOUGH:
            spent += yield points[first](step_id)  # not counted: the largest step leaves caches cold
            step_id += 1
        for rows, make in points.items():
            if turn > 0 and (rows not in taken or (taken[rows][0] > TOO_LONG and rows != first)):
                break
            seconds = yield make(step_id)
            step_id += 1
            spent += seconds
            # The first turn warms up memory, threads and caches.
            taken[rows] = [*taken[rows], seconds] if turn > 1 else [seconds]
            if turn == 0 and rows != first and seconds > TOO_LONG:
                break
        if turn > 0 and spent > LONG_ENOUGH:
            break
    return step_id, {rows: _usual(seconds) for rows, seconds in taken.items()}


def _usual(taken: list[float]) -> float:
    """Return the third best of eight: the best is a lucky exception, others were disturbed."""
    return sorted(taken)[len(taken) // 4]


def _rising(taken: Mapping[int, float]) -> Curve:
    """Return times by rows as a rising curve; a step that is slower than a larger one is noise."""
    rising = np.minimum.accumulate(list(taken.values())[::-1])[::-1]
    return tuple(taken), tuple(rising.tolist())


def measure(target: Target, needs: Needs | None = None) -> StepCosts:
    """Measure a target of this process in at most about 370 steps."""
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
    """Return the KV blocks of one sequence with its largest tree."""
    return -(-(_context(info) + 1 + n_nodes) // info.block_size)


def _context(info: TargetInfo) -> int:
    return max(1, min(MEASURED_CONTEXT, info.max_model_len // 2))


def _fits(info: TargetInfo, batch: int, n_nodes: int) -> bool:
    return batch * _blocks(info, n_nodes) <= info.n_blocks


def _begin(info: TargetInfo, step_id: int, batch: int, n_blocks: int, needs: Needs) -> Step:
    """Start sequences of one token each, with ``n_blocks`` blocks."""
    params, starts, work = SamplingParams(max_tokens=1 << 30), [], []
    for i in range(batch):
        blocks = list(range(i * n_blocks, (i + 1) * n_blocks))
        starts.append(SequenceStart(FIRST_SEQ + i, params, 1, needs))
        work.append(Work(FIRST_SEQ + i, 0, [i % info.spec.vocab_size], new_blocks=blocks))
    return Step(step_id, work, starts)


def _decode(info: TargetInfo, batch: int, n_nodes: int, reads_back: bool, step_id: int) -> Step:
    """Verify a tree of ``n_nodes`` for every sequence, two children a node, at the same position as before.

    All rows of the step have different tokens: equal ones would share their experts, and so read fewer of them than
    the rows of different texts.
    """
    parents = [ROOT if node == 0 else (node - 1) // 2 for node in range(n_nodes)]
    work = []
    for i in range(batch):
        rows = range(i * (n_nodes + 1), (i + 1) * (n_nodes + 1))
        root, *tokens = ((11 * row + step_id) % info.spec.vocab_size for row in rows)
        tree = TokenTree(tokens, parents)
        work.append(Work(FIRST_SEQ + i, _context(info), [root], tree, reads_back=reads_back))
    return Step(step_id, work)


def _room(info: TargetInfo) -> int:
    """Return the tokens of the longest text that the cache can hold."""
    return min(info.max_model_len, info.n_blocks * info.block_size)


def _contexts(info: TargetInfo) -> list[int]:
    """Return the contexts of chunks in tokens: none, and up to ``FAR`` if the cache can hold them."""
    far = min(FAR, _room(info) - PROMPT_ROWS[-1])
    return [0, far] if far >= PROMPT_ROWS[-1] else [0]


def _chunk(info: TargetInfo, context: int, n_rows: int, reads_back: bool, step_id: int) -> Step:
    """Run a chunk of ``n_rows`` after ``context`` tokens, at the same position as before."""
    tokens = [(5 * place + step_id) % info.spec.vocab_size for place in range(n_rows)]
    return Step(step_id, [Work(FIRST_SEQ, context, tokens, reads_back=reads_back)])
