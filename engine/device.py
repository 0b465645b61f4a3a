"""A device as the host sees it: how exactly it calculates, whose memory it has, and what the host fetches from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]


def set_precision(device: torch.device) -> None:
    """Let matrix products on a GPU add up in fp32, in the whole process.

    By default cuBLAS may add up partial sums of bf16 and fp16 products in bf16 and fp16: how much a sum loses would
    depend on how many rows a step has, for they decide how it is cut. TF32 would round the factors of fp32 products.

    Args:
        device: where a model will run; nothing changes for a CPU.
    """
    if device.type != "cuda":
        return
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False
    torch.set_float32_matmul_precision("highest")  # no TF32; of torch's three switches, the one that sets all of them


def is_host(device: torch.device) -> bool:
    """Whether a device's memory is the host's: nothing is copied or waited for, and work done row by row is free."""
    return device.type == "cpu"


def fetch(tensors: Sequence[Tensor]) -> list[Array]:
    """Host arrays of int32 and fp32 tensors of one device, in one copy that the host waits for once.

    On a CPU they are the tensors' own memory.
    """
    if not tensors or is_host(tensors[0].device):
        return [tensor.numpy() for tensor in tensors]
    parts = [tensor.reshape(-1).view(torch.int32) for tensor in tensors]
    flat = torch.cat(parts) if len(parts) > 1 else parts[0]
    # Pinned memory comes from torch's cache: the copy is twice as fast as one into new memory.
    host = torch.empty(flat.shape, dtype=torch.int32, pin_memory=flat.is_cuda)
    host.copy_(flat, non_blocking=True)
    if flat.is_cuda:
        torch.cuda.current_stream(flat.device).synchronize()
    fetched = host.numpy().copy()  # pinned memory is not for keeping
    arrays: list[Array] = []
    first = 0
    for tensor in tensors:
        part = fetched[first : first + tensor.numel()]
        arrays.append(part.view(np.float32 if tensor.dtype == torch.float32 else np.int32).reshape(tensor.shape))
        first += tensor.numel()
    return arrays
