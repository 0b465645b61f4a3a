"""Muon in this CPU's quick precision is PyTorch's, which always multiplies in bf16."""

from __future__ import annotations

import torch

from tools.demo_model.optim import Muon


def test_steps_are_those_of_pytorchs_muon_but_for_its_rounding() -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((64, 32), (32, 64), (64, 32), (32, 32))]
    theirs = [torch.nn.Parameter(matrix.detach().clone()) for matrix in ours]
    before = [matrix.detach().clone() for matrix in ours]
    one = Muon(ours, lr=0.01, weight_decay=0.02)
    other = torch.optim.Muon(theirs, lr=0.01, weight_decay=0.02, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        for mine, its in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine)
            its.grad = mine.grad.clone()
        one.step()
        other.step()
    for mine, its, first in zip(ours, theirs, before, strict=True):
        moved = (its - first).norm()
        assert (mine - its).norm() < 0.03 * moved
        assert (mine - first).norm() > 0.9 * moved
