"""GPU products are exact; the settings exist without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.device import set_precision

MATMUL = torch.backends.cuda.matmul
NAMES = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction", "fp32_precision")


@pytest.fixture
def inexact() -> Iterator[None]:
    """Settings as inexact as they can be, until the test is over."""
    before, precision = {name: getattr(MATMUL, name) for name in NAMES}, torch.get_float32_matmul_precision()
    for name, value in zip(NAMES, (True, True, "tf32"), strict=True):
        setattr(MATMUL, name, value)
    yield
    torch.set_float32_matmul_precision(precision)
    for name, value in before.items():
        setattr(MATMUL, name, value)


@pytest.mark.usefixtures("inexact")
def test_a_gpu_multiplies_in_ieee_fp32_and_all_switches_of_torch_agree() -> None:
    """torch's own kernels fail when its switches disagree."""
    set_precision(torch.device("cpu"))
    assert [getattr(MATMUL, name) for name in NAMES] == [True, True, "tf32"]
    torch.set_float32_matmul_precision("high")
    for _ in range(2):
        set_precision(torch.device("cuda", 1))
        assert [getattr(MATMUL, name) for name in NAMES] == [False, False, "ieee"]
        assert torch.get_float32_matmul_precision() == "highest"
        assert not MATMUL.allow_tf32
        MATMUL.allow_tf32 = True
