"""How kernels are launched."""

from __future__ import annotations

from typing import Any

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


def launch_options(n_warps: int, overlaps: bool = False) -> dict[str, Any]:
    """Return options of a launch.

    A product and a sum are never fused into one operation: it rounds once instead of twice, and the compiler would
    decide where.

    Args:
        n_warps: warps of a program.
        overlaps: the kernel starts while the previous one still runs, and waits for it by ``await_previous``
            (programmatic dependent launch).
    """
    return {"num_warps": n_warps, "launch_pdl": overlaps, "enable_fp_fusion": False}
