"""A condition is evaluated on a few columns of the vocabulary; parameters by id hold there too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.drafter.trees.blocks import block_trees
from engine.drafter.trees.candidates import N_CANDIDATES
from engine.drafter.trees.rounds import BlockAsk
from engine.sampling.params import SamplingParams
from tests.support.draft_oracles import chances, paths

WIDTH, DEPTH, ROOT_TOKEN, POSITION = 3 * N_CANDIDATES, 3, 2, 20
LIKELY = [5, 70, 150, 190]  # ids, not columns of candidates
BY_ID: dict[str, dict[str, Any]] = {
    "allowed": {"allowed_ids": (70, 150, 190)},
    "bad words": {"bad_words": ((5,), (150,), (0,))},
    "bias": {"logit_bias": {5: -50.0, 70: 1.0}},
    "all": {"allowed_ids": (70, 150, 190), "bad_words": ((150,),), "logit_bias": {190: 2.0}},
}
BONUS = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(1))


def condition(
    parents: torch.Tensor, sequences: torch.Tensor, depth: int, states: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    return BONUS[parents], None


def logits() -> torch.Tensor:
    rows = torch.randn(1, DEPTH, WIDTH, generator=torch.Generator().manual_seed(0)) - 20.0
    rows[:, :, LIKELY] += 25.0  # the others do not count
    return rows


@pytest.mark.parametrize("heat", [0.0, 0.9], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", BY_ID)
def test_parameters_by_id_hold_under_a_condition(name: str, heat: float) -> None:
    params = SamplingParams(temperature=heat, seed=7, **BY_ID[name])
    limited = BlockAsk(params, None, ROOT_TOKEN, POSITION, DEPTH, 12)
    free = BlockAsk(SamplingParams(temperature=heat, seed=7), None, ROOT_TOKEN, POSITION, DEPTH, 12)
    branch, other = block_trees(logits().repeat(2, 1, 1), [limited, free], "drafter", condition=condition)
    assert branch is not None
    assert other is not None
    assert set(other.tokens) & {5, 150}, "the parameters matter"
    assert set(branch.tokens) <= set(params.allowed_ids or range(WIDTH))
    assert not {(token,) for token in branch.tokens} & set(params.bad_words)
    assert branch.scores is not None
    for path, score in zip(paths(branch), branch.scores, strict=True):
        row = logits()[0, len(path) - 1] + BONUS[(ROOT_TOKEN, *path)[-2]]
        assert score == pytest.approx(chances(row, params, POSITION + len(path) - 1)[path[-1]], rel=1e-3, abs=1e-9)
