"""Attention by paths: right, and the same bits for a row whatever it is computed with."""

from __future__ import annotations

import random

import pytest
import torch

from engine.cuda.kernels.attention import Heads
from tests.engine.cuda.attention_cases import BLOCK, SPLIT, Case, alone, case_of, oracle
from tests.engine.cuda.plans import random_works

KINDS = {
    "grouped": Heads(4, 2, 16, 0.25),
    "window": Heads(4, 2, 16, 0.25, window=24),
    "seven to one, capped": Heads(7, 1, 8, 0.3, softcap=2.0),
    "head of 24, window, capped": Heads(2, 2, 24, 0.2, window=45, softcap=5.0),
}
# (committed tokens, rows, tree): before, at and behind borders of splits and tiles
STEP = [(0, 5, True), (SPLIT - 3, 17, True), (2 * SPLIT, 1, False), (SPLIT + 11, 13, False)]


def step(kind: str) -> Case:
    return case_of(random_works(random.Random(3), STEP, BLOCK), KINDS[kind], 5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_trees_and_chains_in_scattered_blocks_is_what_fp64_says_path_by_path(kind: str) -> None:
    case = step(kind)
    assert torch.allclose(case.run().double(), oracle(case), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_a_tree_has_the_bits_of_plain_decoding(kind: str) -> None:
    case = step(kind)
    batch = case.run()
    firsts = [0, 5, 22, 23]
    for work, row in ((0, 4), (1, 0), (1, 9), (1, 16), (2, 0), (3, 12)):
        one = alone(case, work, row)
        assert torch.equal(one.run()[0], batch[firsts[work] + row]), (work, row)


def test_a_prompt_has_the_same_bits_in_chunks_of_any_size() -> None:
    case = case_of(random_works(random.Random(3), [(0, 41, False)], BLOCK), KINDS["grouped"], 5)
    whole = case.run()
    for size in (5, 32):
        for end in (size, 3 * size if size == 5 else 41):
            assert torch.equal(alone(case, 0, end - 1, size).run(), whole[end - size : end]), (size, end)


def test_programs_share_items_in_any_way_and_heads_attend_together_or_in_pieces() -> None:
    case = step("window")
    assert torch.equal(case.run(programs=3), case.run(programs=40, n_pieces=2))


def test_large_scores_and_equal_keys_stay_finite() -> None:
    case = step("grouped")
    case.q *= 1e4
    assert torch.allclose(case.run().double(), oracle(case), atol=1e-3)
