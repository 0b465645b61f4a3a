"""Programmatic dependent launch: a kernel starts while the previous one still runs."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def await_previous(overlaps: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton resolves annotations itself
    """Wait until the kernels launched before have written everything, and let the next one start.

    Every kernel of a chain must wait before it reads or writes: only then does its end imply the end of all earlier
    ones. With ``overlaps`` False this emits no instruction.
    """
    if overlaps:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
