"""Triton's interpreter with products whose sums do not depend on where in a matrix a row is."""

from __future__ import annotations

import pytest

from benchmarks.gpu.interpreter import prepare_interpreter


@pytest.fixture(autouse=True, scope="session")
def products_row_by_row() -> None:
    prepare_interpreter()
