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
    before, precision = {name: getattr(MATMUL, name) for name in NAMES}, torch.get_float32_matmul_precision()
    for name, value in zip(NAMES, (True, True, "tf32"), strict=True):
        setattr(MATMUL, name, value)
    yield
    torch.set_float32_matmul_precision(precision)
    for name, value in before.items():
        setattr(MATMUL, name, value)


@pytest.mark.usefixtures("loose")
@pytest.mark.parametrize("switch", ["fp32_precision", "set_float32_matmul_precision", "allow_tf32"])
def test_no_product_is_made_in_tf32_and_torch_can_tell_so(switch: str) -> None:
    """torch refuses to tell when its switches disagree, which its own kernels ask."""
    set_precision(torch.device("cuda"))
    if switch == "fp32_precision":
        MATMUL.fp32_precision = "tf32"
    elif switch == "allow_tf32":
        MATMUL.allow_tf32 = True
    else:
        torch.set_float32_matmul_precision("high")
    set_precision(torch.device("cuda"))
    assert MATMUL.fp32_precision == "ieee"
    assert torch.get_float32_matmul_precision() == "highest"
    assert not MATMUL.allow_tf32


@pytest.mark.usefixtures("loose")
def test_products_on_a_gpu_add_up_in_fp32() -> None:
    set_precision(torch.device("cpu"))
    assert [getattr(MATMUL, name) for name in NAMES] == [True, True, "tf32"]
    set_precision(torch.device("cuda", 1))
    assert [getattr(MATMUL, name) for name in NAMES] == [False, False, "ieee"]
