"""The circuit in the demo models' initial weights copies before any training."""

from __future__ import annotations

import pytest
import torch

from tools.demo_model.architecture import build
from tools.demo_world.initial import lay_out_copying
from tools.demo_world.train import SHAPES


@pytest.mark.parametrize("role", sorted(SHAPES))
def test_an_untrained_model_predicts_the_second_copy_of_random_tokens(role: str) -> None:
    torch.manual_seed(0)
    model = build(SHAPES[role]).eval()
    lay_out_copying(model)
    for n_kinds, share in ((4000, 0.8), (15, 0.7)):  # of few kinds, one token of context predicts a third
        once = torch.randint(6, 6 + n_kinds, (2, 40))
        with torch.no_grad():
            logits = model(torch.cat([once, once], 1)).logits
        assert (logits[:, 40:-1].argmax(-1) == once[:, 1:]).float().mean() > share
