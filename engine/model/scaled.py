"""Linear layers whose weights are fp8 (e4m3) or int8 with a scale for each output; activations stay as they are.

A weight is ``number * scale``, so a sum over the inputs is taken of the numbers and scaled once, when it is complete.
In bf16 and fp32 the numbers themselves are exact. An executor (``engine.cuda``) multiplies by the weights as they are;
this module converts them at every call, which is slow.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.model.quantization import FP8, INT8

FP8_DTYPE = torch.float8_e4m3fn
DTYPES = {INT8: torch.int8, FP8: FP8_DTYPE}
AT_ONCE = 1 << 20  # weights that are quantised together


class ScaledLinear(nn.Module):
    """``nn.Linear`` with weights of one byte.

    Args:
        weight: fp8 (e4m3) or int8 ``[n_out, n_in]``.
        scales: fp32 ``[n_out]``.
        bias: ``[n_out]``, or None.
    """

    weight: Tensor
    output_scales: Tensor

    def __init__(self, weight: Tensor, scales: Tensor, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("output_scales", scales)
        self.bias = bias

    def forward(self, rows: Tensor) -> Tensor:
        """``[.., n_in]`` -> ``[.., n_out]``, in the dtype of ``rows``."""
        if rows.dtype == torch.float16:  # which could not hold the sum of the numbers
            return functional.linear(rows, (self.weight.float() * self.output_scales[:, None]).half(), self.bias)
        scaled = functional.linear(rows, self.weight.to(rows.dtype)).float() * self.output_scales
        return (scaled if self.bias is None else scaled + self.bias).to(rows.dtype)

    def widen(self, dtype: torch.dtype) -> None:
        """Keep the weights that the numbers stand for in ``dtype`` from now on, with scales of 1."""
        self.weight = (self.weight.float() * self.output_scales[:, None]).to(dtype)
        self.output_scales = torch.ones_like(self.output_scales)


def quantize_rows(weight: Tensor, dtype: torch.dtype = FP8_DTYPE) -> tuple[Tensor, Tensor]:
    """A weight ``[n_out, n_in]`` of any float dtype as ``dtype`` (fp8 e4m3 or int8) and fp32 scales ``[n_out]``.

    The largest number of a row becomes the largest of ``dtype`` (448 or 127); others are rounded to the nearest, halves
    to even ones.
    """
    quantized = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    scales = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
    largest = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    step = max(1, AT_ONCE // max(1, weight.shape[1]))
    for first in range(0, weight.shape[0], step):
        rows = weight[first : first + step].float()
        own = rows.abs().amax(dim=1) / largest
        own = torch.where(own > 0, own, 1.0)
        numbers = (rows / own[:, None]).clamp_(-largest, largest)
        quantized[first : first + step] = (numbers.round_() if dtype == torch.int8 else numbers).to(dtype)
        scales[first : first + step] = own
    return quantized, scales


def scale_of(weight: str) -> str:
    """What compressed-tensors calls the scales of a weight, in checkpoints: ``X.weight`` -> ``X.weight_scale``."""
    return f"{weight}_scale"


def put_scaled(model: nn.Module, parameter: str, weight: Tensor, scales: Tensor) -> None:
    """Replace the linear layer that a matrix belongs to by one with weights of one byte; its bias stays."""
    owner = parameter.rpartition(".")[0]
    bias = model.get_submodule(owner).bias
    model.set_submodule(owner, ScaledLinear(weight, scales, bias))  # type: ignore[arg-type]
