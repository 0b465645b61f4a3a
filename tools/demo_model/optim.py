"""Optimisers and the learning-rate schedule.

Muon on the hidden matrices, AdamW on embeddings and norms: about twice the progress per token of AdamW alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tools.demo_model.losses import bf16_is_fast

MUON_RATE = 0.01
ADAMW_RATE = 0.006
WARM_UNTIL = 0.01  # shares of the time budget
CONSTANT_UNTIL = 0.3


class Muon(torch.optim.Optimizer):
    """As `torch.optim.Muon` with "match_rms_adamw", which always multiplies in bf16: 12 s a step on a CPU without it.

    Matrices of one shape are orthogonalised together. Source: Jordan et al., "Muon" (2024); the size of a step is
    that of arXiv:2502.16982, section 2.2, independent of a matrix's shape.
    """

    MOMENTUM = 0.95
    COEFFICIENTS = (3.4445, -4.7750, 2.0315)
    ITERATIONS = 5

    def __init__(self, matrices: list[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of all matrices that have a gradient."""
        for group in self.param_groups:
            alike: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike[matrix.shape].append(matrix)
            for matrices in alike.values():
                self._step_alike(matrices, group)

    def _step_alike(self, matrices: list[nn.Parameter], group: dict[str, Any]) -> None:
        updates = torch.stack([self._with_momentum(matrix) for matrix in matrices])
        size = group["lr"] * 0.2 * max(updates.shape[1:]) ** 0.5
        for matrix, update in zip(matrices, orthogonal(updates, self.COEFFICIENTS, self.ITERATIONS), strict=True):
            # Rows and columns whose gradients are held at zero have no update, and do not decay.
            matrix.addcmul_(matrix, (update != 0).to(matrix.dtype), value=-group["lr"] * group["weight_decay"])
            matrix.add_(update, alpha=-size)

    def _with_momentum(self, matrix: nn.Parameter) -> torch.Tensor:
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        assert matrix.grad is not None
        momentum: torch.Tensor = state["momentum_buffer"].lerp_(matrix.grad, 1 - self.MOMENTUM)
        return matrix.grad.lerp(momentum, self.MOMENTUM)


def orthogonal(
    matrices: torch.Tensor, coefficients: tuple[float, float, float], iterations: int, eps: float = 1e-7
) -> torch.Tensor:
    """Every one of `matrices`, [n, rows, columns], with singular values near 1, by Newton-Schulz iterations."""
    a, b, c = coefficients
    x = matrices.bfloat16() if bf16_is_fast(matrices.device) else matrices
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


def optimizers_for(model: nn.Module, rate: float = 1.0) -> list[torch.optim.Optimizer]:
    """Muon and AdamW at `rate` times their usual rates, each parameter in one of them. A tied embedding counts once."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        hidden = parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
        (matrices if hidden else rest).append(parameter)
    muon = Muon(matrices, lr=rate * MUON_RATE, weight_decay=0.02)
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
