"""Precision of matrix products on a device, and copies from a device to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]


def set_precision(device: torch.device) -> None:
    """Accumulate matrix products on a GPU in fp32, in the whole process.

    By default cuBLAS may add partial sums of bf16 and fp16 products in bf16 and fp16. The rounding would then depend on
    the number of rows of a step, which decides how a sum is split. TF32 would round the factors of fp32 products.

    Args:
        device: of the model; nothing changes for a CPU.
    """
    if device.type != "cuda":
        return
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False
    torch.set_float32_matmul_precision("highest")  # no TF32; this one of torch's three switches sets the others


def is_host(device: torch.device) -> bool:
    """Return whether a device shares the host's memory, so that nothing is copied and no call has to be waited for."""
    return device.type == "cpu"


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the elements of a contiguous host tensor as bytes, without a copy; the view keeps the tensor alive."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy has no bfloat16


def fetch(tensors: Sequence[Tensor]) -> list[Array]:
    """Return host arrays of int32 and fp32 tensors of one device; the host waits for one copy.

    On a CPU the arrays share the tensors' memory.
    """
    if not tensors or is_host(tensors[0].device):
        return [tensor.numpy() for tensor in tensors]
    parts = [tensor.reshape(-1).view(torch.int32) for tensor in tensors]
    flat = torch.cat(parts) if len(parts) > 1 else parts[0]
    # Torch caches pinned memory: the copy is twice as fast as one into new memory.
    host = torch.empty(flat.shape, dtype=torch.int32, pin_memory=flat.is_cuda)
    host.copy_(flat, non_blocking=True)
    if flat.is_cuda:
        torch.cuda.current_stream(flat.device).synchronize()
    fetched = host.numpy().copy()  # gives the pinned memory back
    arrays: list[Array] = []
    first = 0
    for tensor in tensors:
        part = fetched[first : first + tensor.numel()]
        arrays.append(part.view(np.float32 if tensor.dtype == torch.float32 else np.int32).reshape(tensor.shape))
        first += tensor.numel()
    return arrays
