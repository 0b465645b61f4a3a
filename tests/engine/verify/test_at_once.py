"""Rows drawn all at once, as on a GPU: the walks of level by level, in bounded memory."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling import logprobs
from engine.sampling.logprobs import logprob_tensors
from engine.sampling.params import SamplingParams
from engine.sampling.processors import Processing
from engine.tree import EMPTY_TREE, ROOT, TokenTree
from engine.verify import at_once
from engine.verify.batch import WalkItem, verify
from tests.engine.verify.test_batch import PROMPT, VOCAB, Case, autoregressive, cases, run
from tests.support.pretended_device import pretended_device


@settings(max_examples=100, deadline=None)
@given(
    st.lists(cases(), min_size=1, max_size=6),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from([1, 5 * VOCAB, at_once.CELLS]),
)
def test_rows_drawn_all_at_once_give_the_walks_of_level_by_level(
    batch: list[Case], dtype: torch.dtype, cells: int
) -> None:
    """In pieces or in one."""
    by_level = run(batch, dtype)
    with pretended_device(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(at_once, "CELLS", cells)
        assert run(batch, dtype) == by_level


def test_no_more_logits_are_processed_together_than_memory_is_meant_for(monkeypatch: pytest.MonkeyPatch) -> None:
    processed: list[int] = []
    told: list[int] = []

    class Watched(Processing):
        def apply(self, logits: torch.Tensor, owned: bool = False) -> torch.Tensor:
            processed.append(len(logits))
            return super().apply(logits, owned)

    def watched(logits: torch.Tensor, tokens: torch.Tensor, k: int) -> tuple[torch.Tensor, ...]:
        told.append(len(logits))
        return logprob_tensors(logits, tokens, k)

    monkeypatch.setattr(at_once, "CELLS", 3 * VOCAB + 1)
    monkeypatch.setattr(at_once, "Processing", Watched)
    monkeypatch.setattr(logprobs, "logprob_tensors", watched)
    params = SamplingParams(temperature=0.8, top_p=0.9, logprobs=1)
    with pretended_device():
        run([Case(TokenTree([0, 1, 2], [ROOT, ROOT, 0]), params, seed) for seed in (1, 2)])
    assert processed == told == [3, 3, 2]


def test_histories_are_the_same_whichever_way_rows_are_drawn() -> None:
    params = SamplingParams(frequency_penalty=0.4, temperature=0.7, seed=5, min_tokens=2, stop_ids=(1,))
    planted = autoregressive(Case(EMPTY_TREE, params, 3), 4)
    tree = TokenTree(planted, [i - 1 for i in range(len(planted))])
    drawn = []
    for context in (nullcontext(), pretended_device()):
        case = Case(tree, params, 3)
        item = WalkItem(tree, 0, params, case.history(), len(PROMPT))
        with context:
            (result,) = verify(case.rows(), [item])
        assert item.history is not None
        assert result.tokens[: len(planted)] == planted
        drawn.append((result, item.history.n_output, item.history.drawn.tolist(), item.history.times.tolist()))
    assert drawn[0] == drawn[1]
