"""Networks with cached keys, rejections, chunks and shared prefixes score as if recomputed from the whole text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.drafter.networks.medusa import Medusa
from tests.support.incremental_drafter import IncrementalDFlash, IncrementalDrafter, Sequence
from tests.support.naive_drafter import NaiveDrafter, Tree, path_to
from tests.support.tiny_drafters import DFLASH, EAGLE, MEDUSA, PARALLEL, VOCAB, TinyDrafter, tiny_drafter

LONGEST = 40
TOKENS = st.integers(0, VOCAB - 1)


@dataclass(frozen=True, slots=True)
class Step:
    """A draft of every sequence, and what becomes of it."""

    tree: list[tuple[int, int]]  # (any number for the parent, token)
    accepted: int  # any number: the last accepted node, or the root
    bonus: int
    preempted: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """Two sequences with these prompts, the second one beginning as the first; read in chunks, then drafted for."""

    prompt: list[int]
    n_shared: int  # any number
    tail: list[int]
    chunk: int
    steps: list[Step]
    seed: int


STEPS = st.builds(
    Step, st.lists(st.tuples(st.integers(0, 9), TOKENS), max_size=5), st.integers(0, 9), TOKENS, st.booleans()
)
PLANS = st.builds(
    Plan,
    prompt=st.lists(TOKENS, min_size=2, max_size=7),
    n_shared=st.integers(1, 7),
    tail=st.lists(TOKENS, min_size=1, max_size=3),
    chunk=st.integers(1, 4),
    steps=st.lists(STEPS, min_size=1, max_size=3),
    seed=st.integers(0, 1000),
)


def width(drafter: TinyDrafter) -> int:
    return drafter.spec.target_hidden_size * max(1, len(drafter.spec.taps))


def random_states(drafter: TinyDrafter, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(LONGEST, width(drafter), generator=generator, dtype=torch.float64)


def shaped(step: Step, turn: int, deepest: int) -> Tree:
    """The step's tree, of another shape for every sequence, no node deeper than can be scored."""
    tree: list[tuple[int, int]] = []
    for number, token in step.tree:
        parent = (number + turn) % (len(tree) + 1) - 1
        if len(path_to(tree, parent)) + 1 < deepest:
            tree.append((parent, token))
    return tree


def played(
    plan: Plan, drafter: TinyDrafter, runner: IncrementalDrafter | IncrementalDFlash, deepest: int = 99
) -> Iterator[tuple[list[Sequence], list[Tree]]]:
    """The plan's drafts, one after the other; what is accepted is committed in between."""
    first = Sequence(plan.prompt, random_states(drafter, plan.seed))
    for _ in plan.prompt:
        runner.read([first], plan.chunk)
    n_shared = min(plan.n_shared, len(plan.prompt))
    sequences = [first, first.copied(n_shared, plan.prompt[:n_shared] + plan.tail)]
    runner.read(sequences, plan.chunk)
    for step in plan.steps:
        trees = [shaped(step, turn, deepest) for turn in range(2)]
        yield sequences, trees
        for turn, (sequence, tree) in enumerate(zip(sequences, trees, strict=True)):
            last = (step.accepted + turn) % (len(tree) + 1) - 1
            sequence.tokens = [*sequence.tokens, *path_to(tree, last), step.bonus]
        if step.preempted:
            sequences[0].slots = []


@pytest.mark.parametrize("name", EAGLE)
@settings(max_examples=10)
@given(plan=PLANS)
def test_a_tree_of_fed_back_states_has_the_oracles_scores(name: str, plan: Plan) -> None:
    drafter = tiny_drafter(EAGLE[name])
    runner, oracle = IncrementalDrafter(drafter), NaiveDrafter(drafter)
    for sequences, trees in played(plan, drafter, runner):
        for sequence, tree, found in zip(sequences, trees, runner.draft(sequences, trees), strict=True):
            assert_close(found, oracle.eagle(sequence.tokens, sequence.states.numpy(), tree))


@pytest.mark.parametrize("name", PARALLEL)
@settings(max_examples=10)
@given(plan=PLANS)
def test_masks_beside_new_rows_have_the_oracles_scores(name: str, plan: Plan) -> None:
    drafter = tiny_drafter(PARALLEL[name])
    runner, oracle = IncrementalDrafter(drafter), NaiveDrafter(drafter)
    for sequences, _ in played(plan, drafter, runner):
        for sequence, found in zip(sequences, runner.draft_parallel(sequences), strict=True):
            assert_close(found, oracle.parallel(sequence.tokens, sequence.states.numpy()[: sequence.n_states]))


@pytest.mark.parametrize("name", DFLASH)
@settings(max_examples=10)
@given(plan=PLANS)
def test_blocks_beside_context_have_the_oracles_scores(name: str, plan: Plan) -> None:
    drafter = tiny_drafter(DFLASH[name])
    runner, oracle = IncrementalDFlash(drafter), NaiveDrafter(drafter)
    for sequences, trees in played(plan, drafter, runner, deepest=drafter.spec.n_drafts or 0):
        for sequence, tree, (scores, chances) in zip(sequences, trees, runner.draft(sequences, trees), strict=True):
            wanted = oracle.dflash(sequence.tokens, sequence.states.numpy()[: sequence.n_states], tree)
            assert_close(scores, wanted[0])
            assert (chances is None) == (wanted[1] is None)
            if chances is not None and wanted[1] is not None:
                assert_close(chances, wanted[1])


def test_heads_of_one_state() -> None:
    drafter = tiny_drafter(MEDUSA)
    assert isinstance(drafter.network, Medusa)
    states = random_states(drafter, 1)
    batch = drafter.network(states.unflatten(0, (2, -1)))
    assert batch.shape == (2, LONGEST // 2, MEDUSA.n_heads, VOCAB)
    for i, found in enumerate(batch.flatten(0, 1)):
        assert_close(found, NaiveDrafter(drafter).medusa(states.numpy()[: i + 1]))


def assert_close(found: Tensor, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=1e-9)
