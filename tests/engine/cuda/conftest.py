"""Triton's interpreter as a device whose products treat all rows alike.

The interpreter multiplies by NumPy, and NumPy by a library whose sums depend on where in a matrix a row stands. A
tensor core's do not, as far as is known (``benchmarks/gpu/invariance.py`` asks the device). So every number of a
product is summed by itself here, in fp32: what is equal is so by the order in which kernels do things, and by nothing
else.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from tests.support.quick_interpreter import quicken


def _dot(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, total: TensorHandle, *_: object) -> TensorHandle:
    left, right = (np.ascontiguousarray(x.data, np.float32) for x in (a, b))
    product = np.einsum("mk,kn->mn", left, right, optimize=False)
    return TensorHandle(product + total.data, total.dtype.scalar)


@pytest.fixture(autouse=True, scope="session")
def products_row_by_row() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_dot", _dot)
        quicken()
        yield
