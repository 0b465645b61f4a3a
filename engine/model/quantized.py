"""Linear layers with int8 weights on a CPU: LLM.int8() (Dettmers et al., 2022) by bitsandbytes' kernels, row by row.

Weights are int8 with one scale per output; a row of activations is int8 with one scale, except for its outliers (6 and
above), which are multiplied as they are. bitsandbytes takes a whole column of the batch out of int8 as soon as one row
has an outlier in it, so that a row's result depends on its neighbours in the batch. Here only the row's own outliers
are taken out: every row gets, to rounding, what bitsandbytes gives it in a batch of one, whichever rows share the step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.model.quantization import THRESHOLD, bitsandbytes

AT_ONCE = 1 << 20  # weights that are quantised together
SCALES = "SCB"  # what bitsandbytes calls the scales, in checkpoints too


class Int8Linear(nn.Module):
    """``nn.Linear`` with int8 weights.

    Args:
        weight: int8 ``[n_out, n_in]``.
        scales: float32 ``[n_out]``; a weight is ``weight * scale / 127``.
        bias: ``[n_out]``, or None.
        threshold: activations of this size and above are outliers; 0, as in bitsandbytes: there are none.
    """

    def __init__(self, weight: Tensor, scales: Tensor, bias: nn.Parameter | None, threshold: float = THRESHOLD) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer(SCALES, scales)
        self.bias = bias
        self._threshold = threshold or float("inf")

    @property
    def output_scales(self) -> Tensor:
        """What the outputs of the int8 numbers as they are have to be multiplied by, fp32 ``[n_out]``."""
        return self.get_buffer(SCALES).float() / 127

    def forward(self, rows: Tensor) -> Tensor:
        """``[.., n_in]`` -> ``[.., n_out]``, in the dtype of ``rows``."""
        flat = rows.reshape(-1, rows.shape[-1])
        half = flat.to(torch.float16)
        large = half.abs() >= self._threshold
        quantized, stats, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(half.masked_fill(large, 0), 0.0)
        out, _ = torch.ops.bitsandbytes.int8_mixed_scaled_mm(
            flat.masked_fill(~large, 0),  # of its columns below, each row contributes its own outliers and no more
            quantized,
            self.get_buffer("weight"),
            stats,
            self.get_buffer(SCALES),
            large.any(dim=0).nonzero().flatten(),
            self.bias,
        )
        result: Tensor = out.reshape(*rows.shape[:-1], -1)
        return result


def quantize(weight: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """A weight ``[n_out, n_in]`` as int8 and its scales, on ``device``, as bitsandbytes quantises it.

    Some rows at a time, for what the kernel holds on the way is several times what comes out.
    """
    bitsandbytes()
    quantized = torch.empty(weight.shape, dtype=torch.int8, device=device)
    scales = torch.empty(weight.shape[0], dtype=torch.float32, device=device)
    step = max(1, AT_ONCE // weight.shape[1])
    for first in range(0, weight.shape[0], step):
        half = weight[first : first + step].to(device=device, dtype=torch.float16)
        rows, own, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(half, 0.0)
        quantized[first : first + step] = rows
        scales[first : first + step] = own
    return quantized, scales


def is_quantized(model: nn.Module, parameter: str) -> bool:
    """Whether a parameter of a Hugging Face causal LM may have one byte a number: matrices in its decoder layers."""
    owner, _, name = parameter.rpartition(".")
    return parameter.startswith("model.layers.") and name == "weight" and type(model.get_submodule(owner)) is nn.Linear


def put_int8(model: nn.Module, parameter: str, weight: Tensor, scales: Tensor, threshold: float) -> None:
    """Replace the linear layer that a matrix belongs to by one in int8; its bias stays."""
    owner = parameter.rpartition(".")[0]
    bias = model.get_submodule(owner).bias
    model.set_submodule(owner, Int8Linear(weight, scales, bias, threshold))  # type: ignore[arg-type]
