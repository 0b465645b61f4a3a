"""How exactly a GPU calculates; the settings exist without one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.device import set_precision

MATMUL = torch.backends.cuda.matmul
NAMES = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction", "fp32_precision")


@pytest.fixture
def loose() -> Iterator[None]:
    """Settings as inexact as they can be, until the test is over."""
    before = {name: getattr(MATMUL, name) for name in NAMES}
    for name, value in zip(NAMES, (True, True, "tf32"), strict=True):
        setattr(MATMUL, name, value)
    yield
    for name, value in before.items():
        setattr(MATMUL, name, value)


@pytest.mark.usefixtures("loose")
def test_products_on_a_gpu_add_up_in_fp32() -> None:
    set_precision(torch.device("cpu"))
    assert [getattr(MATMUL, name) for name in NAMES] == [True, True, "tf32"]
    set_precision(torch.device("cuda", 1))
    assert [getattr(MATMUL, name) for name in NAMES] == [False, False, "ieee"]
