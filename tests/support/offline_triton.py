"""Compiles for sm_90, without a GPU, what a function launches on meta tensors; what comes out is told, nothing runs.

Kernels must have been made by Triton's compiler and not by its interpreter, so this needs a process of its own without
``TRITON_INTERPRET``.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

_CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


@dataclass(frozen=True)
class Launch:
    """What a kernel became."""

    kernel: str
    case: str
    registers: int  # of a thread
    stack: int  # bytes of a thread: what is spilled, and arrays
    shared: int  # bytes of a program
    wgmma: bool  # whether it multiplies with Hopper's instruction
    mma_sync: bool  # or with an older one
    fuses: bool  # whether products and sums may become one operation, rounded once


class _Hopper:
    """A driver that knows its device's architecture, and no more."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compiled(cases: dict[str, Callable[[], None]]) -> list[Launch]:
    """Every different kernel that the cases launch."""
    driver.set_active(_Hopper())
    found: dict[str, Launch] = {}
    case, run = "", JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        if kernel.hash not in found:
            found[kernel.hash] = _launch(self.__name__, case, kernel)
        return kernel

    JITFunction.run = compile_only
    try:
        for name, launch in cases.items():
            case = name
            launch()
    finally:
        JITFunction.run = run
    return list(found.values())


def _launch(name: str, case: str, kernel: Any) -> Launch:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        asked = [str(_CUOBJDUMP), "--dump-resource-usage", file.name]
        said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", said)
    assert usage is not None, said
    registers, stack, local = map(int, usage.groups())
    ptx = kernel.asm["ptx"]
    fuses = bool(kernel.metadata.enable_fp_fusion)
    return Launch(
        name, case, registers, stack + local, kernel.metadata.shared, "wgmma.mma" in ptx, "mma.sync" in ptx, fuses
    )
