"""Triton's interpreter with products whose sums do not depend on where in a matrix a row is.

NumPy's sums depend on it, those of a tensor core do not. So every number of a product is summed by itself, in fp32:
equal bits are then due to the order of operations in the kernels alone.
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
