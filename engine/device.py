"""How exactly a device calculates; set for the whole process."""

from __future__ import annotations

import torch


def set_precision(device: torch.device) -> None:
    """Let matrix products on a GPU add up in fp32.

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
    matmul.fp32_precision = "ieee"  # no TF32
