"""The best next ids of rows of any length: those of a plain sort, however the rows are cut."""

from __future__ import annotations

import pytest
import torch

from engine.stage.logit_readback import _LONG, _top


@pytest.mark.parametrize("vocab", [5, 300, _LONG - 1, _LONG, _LONG + 37])
@pytest.mark.parametrize("n_rows", [1, 9])
def test_top_ids_and_their_log_probabilities_are_those_of_a_sort(vocab: int, n_rows: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.stack([torch.randperm(vocab, generator=generator) for _ in range(n_rows)]) / vocab * 30.0
    ids, logprobs = _top(logits, 16, with_logprobs=True)
    wanted = logits.sort(dim=-1, descending=True).indices[:, :16]
    assert torch.equal(ids, wanted.int())
    assert torch.allclose(logprobs, logits.double().log_softmax(-1).gather(-1, wanted).float(), atol=1e-4)
    assert torch.equal(_top(logits, 16, with_logprobs=False)[0], ids)


def test_among_equal_logits_any_may_come_first() -> None:
    logits = torch.zeros(2, 2 * _LONG)
    logits[:, 7::1000] = 1.0
    (ids,) = _top(logits, 16, with_logprobs=False)
    assert (ids % 1000 == 7).all()
    assert all(len(set(row)) == 16 for row in ids.tolist())
