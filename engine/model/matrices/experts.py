"""The experts of a mixture-of-experts layer, as linear layers for each matrix: checkpoints store them so.

Hugging Face's class has all experts in two tensors. With a linear layer for each matrix, experts are loaded, quantized,
packed and shared by ranks like any other matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Expert(nn.Module):
    """A gated MLP ``down(act(gate(x)) * up(x))``.

    Args:
        hidden: width of rows.
        width: of the inner rows.
        activation: of the gate.
        device: of the weights, which have no values yet.
        dtype: of the weights.
    """

    def __init__(
        self,
        hidden: int,
        width: int,
        activation: Callable[[Tensor], Tensor],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False, device=device, dtype=dtype)
        self.up_proj = nn.Linear(hidden, width, bias=False, device=device, dtype=dtype)
        self.down_proj = nn.Linear(width, hidden, bias=False, device=device, dtype=dtype)
        self._activation = activation

    def forward(self, rows: Tensor) -> Tensor:
        """Return ``[n, hidden]`` of ``[n, hidden]``."""
        product: Tensor = self.down_proj(self._activation(self.gate_proj(rows)) * self.up_proj(rows))
        return product


class Experts(nn.ModuleList):
    """Replaces Hugging Face's experts of a layer; ``of`` makes it.

    ``own`` are the experts that this process has: all, or those of a rank.
    """

    own: range

    @classmethod
    def of(cls, module: Any) -> Experts:
        """Return the experts of Hugging Face's module, with its weights, or without memory if it has none."""
        gate_up, down = module.gate_up_proj.detach(), module.down_proj.detach()
        n, hidden, width = down.shape
        meta = torch.device("meta")
        experts = cls(Expert(hidden, width, module.act_fn, meta, down.dtype) for _ in range(n))
        experts.own = range(n)
        for i, expert in enumerate(experts if down.device != meta else ()):
            parts = (*gate_up[i].chunk(2), down[i])
            for linear, weight in zip((expert.gate_proj, expert.up_proj, expert.down_proj), parts, strict=True):
                linear.weight = nn.Parameter(weight.clone(), requires_grad=False)  # type: ignore[union-attr]
        return experts

    def drop_others(self, own: range) -> None:
        """Drop all experts but ``own``, a rank's."""
        self.own = own
        for number in range(len(self)):
            if number not in own:
                self[number] = nn.Identity()

    def forward(self, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return the weighted sum of each row's experts ``[n, hidden]``, in ascending order of their numbers.

        Args:
            hidden: ``[n, hidden]``.
            top_k_index: numbers of each row's experts, int64 ``[n, k]``.
            top_k_weights: their weights ``[n, k]``.
        """
        return self.sum_own(hidden, top_k_index, top_k_weights).to(hidden.dtype)

    def sum_own(self, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return the sum over this process's experts, fp32 ``[n, hidden]``; arguments as for ``forward``."""
        total = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        for number in sorted({*top_k_index.flatten().tolist()}):
            if number in self.own:
                rows, places = torch.where(top_k_index == number)
                product = self[number](hidden[rows]).float() * top_k_weights[rows, places, None].float()
                total.index_add_(0, rows, product)
        return total


def put_experts(model: nn.Module) -> None:
    """Replace Hugging Face's experts in every layer of a causal LM that has them."""
    for layer in model.get_submodule("model.layers").children():
        found: Any = getattr(layer.mlp, "experts", None)
        if found is not None and not isinstance(found, Experts):
            layer.mlp.experts = Experts.of(found)  # type: ignore[union-attr]
