"""Compiled loops."""

import numba
import numpy as np
import pytest

from retrieval_store.index.jit import compiled_in_place


@compiled_in_place
def makes_an_array(n: int) -> int:
    return len(np.empty(n))


def test_what_makes_an_array_cannot_be_compiled_in_place() -> None:
    """Nothing would ever free it."""
    with pytest.raises(numba.core.errors.NumbaError):
        makes_an_array(3)
