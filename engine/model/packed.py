"""Linear layers whose fp32 matrices are packed for a CPU's matrix products at load, instead of in every product.

A packed layer keeps no other copy of its matrix. One that was read into memory is freed; one that is a map of the
checkpoint's file leaves pages that the kernel may drop. Packed layers are for inference: they have no ``weight`` and
no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

PACKED_FOR = 16  # rows that oneDNN chooses a layout for; those for 16 and 64 are equally fast from 2 to 512 rows
FULL_ROWS = 4  # rows that take no longer than one: reading the matrix takes all the time
FAST_ROWS = 3  # from here on oneDNN multiplies matrices; for fewer rows it multiplies vectors, which is slower


class PackedLinear(nn.Module):
    """``nn.Linear`` with a packed matrix.

    Args:
        linear: fp32, on a CPU.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._matrix = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), PACKED_FOR)
        self._bias = linear.bias
        self._n_out = linear.out_features

    def forward(self, hidden: Tensor) -> Tensor:
        """``[.., n_in]`` -> ``[.., n_out]``."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        n = len(rows)
        if 0 < n < FAST_ROWS:
            rows = torch.cat((rows,) * (FULL_ROWS // n))
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._matrix, self._bias, "none", [], "")
        return product[:n].view(*hidden.shape[:-1], self._n_out)


def pack_linears(module: nn.Module) -> nn.Module:
    """The module with every linear layer packed that is fp32 on a CPU; unchanged where torch lacks oneDNN."""
    if type(module) is nn.Linear:
        return PackedLinear(module) if _can_pack(module.weight) else module
    for name, child in list(module.named_children()):
        setattr(module, name, pack_linears(child))
    return module


def _can_pack(weight: Tensor) -> bool:
    has_onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")  # type: ignore[no-untyped-call]
    return has_onednn and weight.device.type == "cpu" and weight.dtype == torch.float32
