"""Triton's interpreter for parts and tests that run on a CPU."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def prepare_interpreter() -> None:
    """Make the interpreter quicker, and sums a row's own, for as long as this process lives; it cannot compile then.

    It would search the whole language at every launch, a third of its time. NumPy's products depend on a row's place in
    a matrix, a tensor core's do not: here every number is summed by itself. Overlapping launches wait for nothing.
    """
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda _: interpreter._LangPatchScope()
    InterpreterBuilder.create_dot = _multiply
    tl.extra.cuda.gdc_wait = tl.extra.cuda.gdc_launch_dependents = lambda: None


def _multiply(_: object, a: TensorHandle, b: TensorHandle, total: TensorHandle, *__: object) -> TensorHandle:
    left, right = (np.ascontiguousarray(x.data, np.float32) for x in (a, b))
    return TensorHandle(np.einsum("mk,kn->mn", left, right, optimize=False) + total.data, total.dtype.scalar)
