"""Steps to plan, and the keys of every row when a plan is read as a device reads it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from engine.cuda.plan.items import PathWork
from engine.cuda.plan.layout import ITEM
from engine.cuda.plan.plan import StepPlan
from engine.tree import TokenTree
from tests.engine.cuda.plan_oracle import first_split


def random_parents(rng: random.Random, n: int) -> list[int]:
    """A tree of ``n`` nodes with long and short branches."""
    return [rng.choice([i - 1, rng.randrange(-1, i)]) for i in range(n)]


def random_works(rng: random.Random, sizes: Sequence[tuple[int, int, bool]], block_size: int) -> list[PathWork]:
    """Works of (committed tokens, rows, whether they are a tree), in blocks that are shuffled and have no gaps."""
    needed = [-(-(n_cached + n_rows) // block_size) for n_cached, n_rows, _ in sizes]
    blocks = rng.sample(range(sum(needed)), sum(needed))
    works = []
    for (n_cached, n_rows, is_tree), n in zip(sizes, needed, strict=True):
        mine, blocks = blocks[:n], blocks[n:]
        works.append(PathWork(n_cached, n_rows, random_parents(rng, n_rows - 1) if is_tree else None, mine))
    return works


def as_drafted(rng: random.Random, works: Sequence[PathWork]) -> list[PathWork]:
    """The same works; some rows ran before, or a chain is a block in which all rows see each other."""
    drafted = []
    for work in works:
        n_run = rng.choice([0, rng.randrange(work.n_rows)])
        is_block = work.parents is None and not n_run and rng.random() < 0.5
        drafted.append(work._replace(n_run=n_run, is_block=is_block))
    return drafted


def tree_of(work: PathWork) -> TokenTree:
    """The rows of a work as a root and its tree, which may be a chain."""
    n_nodes = work.n_rows - 1
    return TokenTree([0] * n_nodes, list(range(-1, n_nodes - 1)) if work.parents is None else list(work.parents))


def as_arrays(works: Sequence[PathWork]) -> list[PathWork]:
    """The same works; parents and blocks are int32 arrays."""
    return [
        work._replace(
            parents=None if work.parents is None else np.array(work.parents, np.int32),
            blocks=np.array(work.blocks, np.int32),
        )
        for work in works
    ]


SIZES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20), st.booleans()), min_size=1, max_size=4)


def ancestors(work: PathWork, row: int) -> list[int]:
    """Rows of a work that a row sees, itself included, in ascending order of positions."""
    if work.is_block:
        return list(range(work.n_rows))
    if work.parents is None:
        return list(range(row + 1))
    seen = [row]
    while seen[-1]:
        seen.append(work.parents[seen[-1] - 1] + 1)
    return seen[::-1]


def expected_slots(work: PathWork, row: int, window: int | None, block_size: int) -> list[int]:
    """Slots of the positions that a row sees, by the definition of a tree."""
    own = [*range(work.n_cached), *(work.n_cached + seen for seen in ancestors(work, row))]
    slots = [work.blocks[slot // block_size] * block_size + slot % block_size for slot in own]
    return slots if window is None else slots[-window:]


def seen_slots(plan: StepPlan, place: int) -> list[list[tuple[int, int, int]]]:
    """(split, position, slot) of the keys that every row sees under a window, in the order of its partials."""
    ints, layout = plan.ints, plan.layout
    window, positions = layout.windows[place], ints[layout.positions]
    partials: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    n_items, at = ints[2 * place : 2 * place + 2]
    for members, n, table, base, unit, split, end, _ in ints[at : at + n_items * ITEM].reshape(-1, ITEM).tolist():
        for row in ints[members : members + n].tolist():
            position = int(positions[row])
            keys = []
            for key in range(split * layout.split, end):
                if key > position or (window is not None and key <= position - window):
                    continue
                slot = int(ints[table + (key - base) // unit]) * unit + (key - base) % unit
                keys.append((split, key, slot))
            if split < first_split(layout, position, window):
                assert not keys
                continue
            assert (row, split) not in partials, "one partial has one writer"
            partials[row, split] = keys
    return [[key for split in range(99) for key in partials.pop((row, split), [])] for row in range(plan.n_rows)] + (
        [[(-1, -1, -1)]] if partials else []
    )
