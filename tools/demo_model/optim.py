"""Optimisers and the learning-rate schedule.

Muon on the hidden matrices, AdamW on embeddings and norms: about twice the progress per token of AdamW alone.
"""

from __future__ import annotations

import torch
from torch import nn

MUON_RATE = 0.01
ADAMW_RATE = 0.006
WARM_UNTIL = 0.01  # shares of the time budget
CONSTANT_UNTIL = 0.3


def optimizers_for(model: nn.Module, rate: float = 1.0) -> list[torch.optim.Optimizer]:
    """Muon and AdamW at `rate` times their usual rates, each parameter in one of them. A tied embedding counts once."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        hidden = parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
        (matrices if hidden else rest).append(parameter)
    # "match_rms_adamw" makes the step size independent of a matrix's shape.
    muon = torch.optim.Muon(matrices, lr=rate * MUON_RATE, weight_decay=0.02, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(rest, lr=rate * ADAMW_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    for optimizer in (muon, adamw):
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return [muon, adamw]


def factor_at(progress: float) -> float:
    """Learning-rate factor at `progress` (0 to 1) of the time budget: warm up, hold, fall to zero in a line."""
    if progress < WARM_UNTIL:
        return max(progress / WARM_UNTIL, 0.02)
    return min(1.0, max(0.0, (1.0 - progress) / (1.0 - CONSTANT_UNTIL)))


def step_all(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    """One update with every rate at `factor` times its peak; clears the gradients."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
