"""Replacements of ``nn.Linear``: weights of one byte (``Int8Linear``, ``ScaledLinear``), and packed fp32 weights.

``Int8Linear`` is LLM.int8() (Dettmers et al., 2022) on a CPU, by bitsandbytes' kernels. ``ScaledLinear`` is fp8 on any
device and int8 on a GPU; its activations keep their dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.model.matrices.quantization import FP8, INT8, SCALES, THRESHOLD, Quantization, bitsandbytes

FP8_DTYPE = torch.float8_e4m3fn
DTYPES = {INT8: torch.int8, FP8: FP8_DTYPE}
WEIGHTS_AT_ONCE = 1 << 20  # quantized together: the temporary memory is several times the result
PACKED_FOR = 16  # rows that oneDNN chooses a layout for; those for 16 and 64 are equally fast from 2 to 512 rows
FULL_ROWS = 4  # rows that take no longer than one: reading the matrix takes all the time
FAST_ROWS = 3  # oneDNN multiplies fewer rows as vectors, which is slower


class Int8Linear(nn.Module):
    """``nn.Linear`` with int8 weights, whose activations are int8 with one scale per row, except for outliers.

    bitsandbytes takes a whole column of the batch out of int8 if one row has an outlier there, so a row's result
    depends on the other rows. Here only the row's own outliers are taken out. Every row gets, up to rounding, what
    bitsandbytes returns for a batch of one.

    Args:
        weight: int8 ``[n_out, n_in]``.
        scales: fp32 ``[n_out]``; a weight is ``weight * scale / 127``.
        bias: ``[n_out]``, or None.
        threshold: activations of at least this size are outliers; 0, as in bitsandbytes: none are.
    """

    def __init__(self, weight: Tensor, scales: Tensor, bias: nn.Parameter | None, threshold: float = THRESHOLD) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer(SCALES, scales)
        self.bias = bias
        self._threshold = threshold or float("inf")

    @property
    def output_scales(self) -> Tensor:
        """Factors fp32 ``[n_out]`` of the outputs of the int8 numbers."""
        return self.get_buffer(SCALES).float() / 127

    def forward(self, rows: Tensor) -> Tensor:
        """Return ``[.., n_out]`` in the dtype of ``rows`` ``[.., n_in]``."""
        flat = rows.reshape(-1, rows.shape[-1])
        half = flat.to(torch.float16)
        large = half.abs() >= self._threshold
        quantized, stats, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(half.masked_fill(large, 0), 0.0)
        out, _ = torch.ops.bitsandbytes.int8_mixed_scaled_mm(
            flat.masked_fill(~large, 0),  # in the columns below, each row adds only its own outliers
            quantized,
            self.get_buffer("weight"),
            stats,
            self.get_buffer(SCALES),
            large.any(dim=0).nonzero().flatten(),
            self.bias,
        )
        result: Tensor = out.reshape(*rows.shape[:-1], -1)
        return result


class ScaledLinear(nn.Module):
    """``nn.Linear`` with weights of one byte, ``number * scale``; the sum over the inputs is scaled once at the end.

    In bf16 and fp32 the numbers are exact. The executor (``engine.cuda``) multiplies by the numbers themselves; this
    module converts them at every call, which is slow.

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
        """Return ``[.., n_out]`` in the dtype of ``rows`` ``[.., n_in]``."""
        if rows.dtype == torch.float16:  # cannot hold the sum of the numbers
            return functional.linear(rows, (self.weight.float() * self.output_scales[:, None]).half(), self.bias)
        scaled = functional.linear(rows, self.weight.to(rows.dtype)).float() * self.output_scales
        return (scaled if self.bias is None else scaled + self.bias).to(rows.dtype)

    def widen(self, dtype: torch.dtype) -> None:
        """Convert the weights to ``dtype``, with scales of 1."""
        self.weight = (self.weight.float() * self.output_scales[:, None]).to(dtype)
        self.output_scales = torch.ones_like(self.output_scales)


class PackedLinear(nn.Module):
    """``nn.Linear`` with a matrix that is packed once at load instead of in every product. For inference only.

    The layer has no ``weight``, no gradient, and no other copy of its matrix. The original matrix is freed; if
    it is mapped from a file, the kernel may drop its pages.

    Args:
        linear: fp32, on a CPU.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._matrix = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), PACKED_FOR)
        self._bias = linear.bias
        self._n_out = linear.out_features

    def unpacked(self) -> Tensor:
        """Return a copy of the matrix ``[n_out, n_in]``."""
        matrix: Tensor = self._matrix.to_dense()
        return matrix

    def forward(self, hidden: Tensor) -> Tensor:
        """Return ``[.., n_out]`` of ``[.., n_in]``."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        n = len(rows)
        if 0 < n < FAST_ROWS:
            rows = torch.cat((rows,) * (FULL_ROWS // n))
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._matrix, self._bias, "none", [], "")
        return product[:n].view(*hidden.shape[:-1], self._n_out)


def pack_linears(module: nn.Module) -> nn.Module:
    """Pack every linear layer that is fp32 on a CPU, and return the module; changes nothing if torch lacks oneDNN."""
    if type(module) is nn.Linear:
        return PackedLinear(module) if _can_pack(module.weight) else module
    for name, child in list(module.named_children()):
        setattr(module, name, pack_linears(child))
    return module


def _can_pack(weight: Tensor) -> bool:
    has_onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")  # type: ignore[no-untyped-call]
    return has_onednn and weight.device.type == "cpu" and weight.dtype == torch.float32


def is_layer_matrix(model: nn.Module, parameter: str) -> bool:
    """Return whether a parameter of a causal LM is a matrix of a decoder layer, which may have weights of one byte."""
    owner, _, name = parameter.rpartition(".")
    return parameter.startswith("model.layers.") and name == "weight" and type(model.get_submodule(owner)) is nn.Linear


def put_matrix(model: nn.Module, parameter: str, weight: Tensor, scales: Tensor, quantization: Quantization) -> None:
    """Replace the linear layer of a matrix by one with weights of one byte; its bias stays."""
    owner = parameter.rpartition(".")[0]
    bias: nn.Parameter | None = model.get_submodule(owner).bias  # type: ignore[assignment]
    if quantization.threshold is None:
        model.set_submodule(owner, ScaledLinear(weight, scales, bias))
    else:
        model.set_submodule(owner, Int8Linear(weight, scales, bias, quantization.threshold))


def quantize(weight: Tensor, quantization: Quantization, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a weight ``[n_out, n_in]`` with one byte a number on ``device``, and its scales fp32 ``[n_out]``."""
    if quantization.threshold is None:
        return quantize_rows(weight.to(device), DTYPES[quantization.name])
    bitsandbytes()
    quantized = torch.empty(weight.shape, dtype=torch.int8, device=device)
    scales = torch.empty(weight.shape[0], dtype=torch.float32, device=device)
    for rows in _row_blocks(weight):
        half = weight[rows].to(device=device, dtype=torch.float16)
        quantized[rows], scales[rows], _ = torch.ops.bitsandbytes.int8_vectorwise_quant(half, 0.0)
    return quantized, scales


def quantize_rows(weight: Tensor, dtype: torch.dtype = FP8_DTYPE) -> tuple[Tensor, Tensor]:
    """Return a weight ``[n_out, n_in]`` as ``dtype`` (fp8 e4m3 or int8), and its scales fp32 ``[n_out]``.

    The largest number of a row becomes the largest of ``dtype`` (448 or 127). Others are rounded to the nearest, halves
    to even.
    """
    quantized = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    scales = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
    largest = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    for rows in _row_blocks(weight):
        values = weight[rows].float()
        own = values.abs().amax(dim=1) / largest
        own = torch.where(own > 0, own, 1.0)
        numbers = (values / own[:, None]).clamp_(-largest, largest)
        quantized[rows] = (numbers.round_() if dtype == torch.int8 else numbers).to(dtype)
        scales[rows] = own
    return quantized, scales


def _row_blocks(weight: Tensor) -> list[slice]:
    n_out, n_in = weight.shape
    step = max(1, WEIGHTS_AT_ONCE // max(1, n_in))
    return [slice(first, first + step) for first in range(0, n_out, step)]
