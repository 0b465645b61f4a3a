"""Which registers, shared memory and waits do the kernels need on a Hopper GPU? Compiles them without a GPU.

Three minutes for all kernels, as large models launch them. A kernel that several cases launch is listed once, in its
first case. `programs` run on a multiprocessor at once, by registers, warps and shared memory. `waits` are copies that
may still be under way when the innermost loop waits for data: 0 means that copying and computing take turns. Nothing
runs, so this says nothing about time. The last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from benchmarks.support.reporting import BenchmarkReport, table
from tests.engine.cuda.compiled_cases import CASES

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
REGISTERS, WARPS, SHARED_BYTES, PROGRAMS = 65536, 64, 228 << 10, 32  # of a multiprocessor of an H100 or H200
COLUMNS = ("kernel", "tile", "case", "registers", "stack", "warps", "programs", "shared KiB", "waits", "wgmma")
# A loop and its body: the lines that are indented further. The lookahead finds loops inside loops, too.
LOOP = re.compile(r"(?=^( *)[^\n]*scf\.for[^\n]*\n((?:\1 [^\n]*\n)+))", re.MULTILINE)


def compile_kernels(cases: Mapping[str, Callable[[], None]]) -> list[dict[str, Any]]:
    """Return properties of every different kernel that the cases launch on meta tensors, in the order of the cases.

    From then on Triton launches nothing in this process.
    """
    target = GPUTarget("cuda", 90, 32)
    answers = {"get_current_device": lambda: 0, "get_current_stream": lambda device: 0}
    driver.set_active(SimpleNamespace(get_current_target=lambda: target, **answers))
    found: dict[str, dict[str, Any]] = {}
    case, run = "", JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        if kernel.hash not in found:
            found[kernel.hash] = {"kernel": self.__name__, "case": case} | read_properties(kernel)
        return kernel

    JITFunction.run = compile_only
    for case, launch in cases.items():  # noqa: B007  # ``compile_only`` reads it
        launch()
    return list(found.values())


def read_properties(kernel: Any) -> dict[str, Any]:
    """Return resources and instructions of a compiled kernel, ready for JSON."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = subprocess.check_output([CUOBJDUMP, "--dump-resource-usage", file.name], text=True)
    registers, stack, _, local = map(int, re.findall(r"(?:REG|STACK|SHARED|LOCAL):(\d+)", usage))
    ptx, metadata, names = kernel.asm["ptx"], kernel.metadata, kernel.src.fn.arg_names
    return {
        "constants": {names[at]: value for (at,), value in kernel.src.constants.items()},
        "registers": registers,
        "stack": stack + local,  # bytes of a thread: spilled registers, and arrays
        "shared": metadata.shared,  # bytes of a program
        "warps": metadata.num_warps,
        "programs": count_programs(registers, metadata.num_warps, metadata.shared),
        "waits": find_waits(kernel.asm["ttgir"]),
        "copies": "cp.async" in ptx,  # asynchronously, into shared memory
        "wgmma": sorted(set(re.findall(r"wgmma\.mma_async\S*\.(m\d+n\d+k\d+)", ptx))),
        "mma_sync": "mma.sync" in ptx,  # the instruction of older GPUs
        "awaits_previous": "griddepcontrol.wait" in ptx,
        "fuses": bool(metadata.enable_fp_fusion),  # a product and a sum may become one operation, rounded once
    }


def count_programs(registers: int, warps: int, shared: int) -> int:
    """Return the programs that a multiprocessor runs at once; CUDA takes 1 KiB of each."""
    by_registers = REGISTERS // (-(-registers // 8) * 256 * warps)
    return min(PROGRAMS, by_registers, WARPS // warps, SHARED_BYTES // (shared + 1024))


def find_waits(ttgir: str) -> list[int]:
    """Return the groups of copies that may be pending after each wait in the innermost loops."""
    bodies = [body for _, body in LOOP.findall(ttgir) if "scf.for" not in body]
    return [int(pending) for body in bodies for pending in re.findall(r"async_wait.*num = (\d+)", body)]


def format_row(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of a table row."""
    constants = {"leaves": 1} | found["constants"]
    is_product = found["kernel"] in {"_product", "_multiply_pairs"}
    tile = "{block_m} x {block_n}, leaves: {leaves}".format(**constants) if is_product else None
    texts = {name: " ".join(dict.fromkeys(map(str, found[name]))) or None for name in ("waits", "wgmma")}
    return {**found, **texts, "tile": tile, "shared KiB": f"{found['shared'] / 1024:.1f}"}


def main() -> int:
    """Print the table and the document; returns the exit status."""
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tests.engine.cuda.compiled", description=__doc__, formatter_class=shown)
    parser.add_argument("cases", nargs="*", help="beginnings of the names of cases; default: all cases")
    beginnings = tuple(parser.parse_args().cases) or ("",)
    kernels = compile_kernels({name: case for name, case in CASES.items() if name.startswith(beginnings)})
    tables = table({name: name for name in COLUMNS}, map(format_row, kernels))
    print(f"{tables}\n")
    return BenchmarkReport({"kernels": kernels}, tables, failed=False).publish(None)


if __name__ == "__main__":
    raise SystemExit(main())
