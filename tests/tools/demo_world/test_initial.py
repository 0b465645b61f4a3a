"""The circuit that initial weights hold: copying works before anything is learnt."""

from __future__ import annotations

import pytest
import torch

from tools.demo_model.architecture import build
from tools.demo_world.initial import lay_out_copying
from tools.demo_world.train import SHAPES


def share_copied(role: str, laid_out: bool, n: int) -> float:
    """Of `n` random tokens that occur twice, how many are foretold by their first occurrence."""
    torch.manual_seed(0)
    model = build(SHAPES[role]).eval()
    if laid_out:
        lay_out_copying(model)
    once = torch.stack([torch.randperm(4000)[:n] + 6 for _ in range(8)])
    with torch.no_grad():
        logits = model(torch.cat([once, once], 1)).logits
    return (logits[:, n:-1].argmax(-1) == once[:, 1:]).float().mean().item()


@pytest.mark.parametrize("role", sorted(SHAPES))
@pytest.mark.parametrize("n", [10, 60])
def test_untrained_models_copy(role: str, n: int) -> None:
    assert share_copied(role, laid_out=True, n=n) > 0.8
    assert share_copied(role, laid_out=False, n=n) < 0.1


def test_only_the_circuit_adds_to_the_residual_stream() -> None:
    model = build(SHAPES["target"])
    lay_out_copying(model)
    for layer in model.model.layers:
        assert not layer.mlp.down_proj.weight.any()
    assert [layer.self_attn.o_proj.weight.any().item() for layer in model.model.layers] == [True] * 2 + [False] * 6
