"""Compile every kernel for a Hopper GPU, without a GPU, as large models launch it, and print what the programs need.

    python -m benchmarks.gpu.compiled                   # all kernels: a minute
    python -m benchmarks.gpu.compiled "8B, 16 rows"     # the cases whose names contain this text
    python -m benchmarks.gpu.compiled --leaves          # products by leaves of a program, and bytes of leaves in memory

A kernel that several cases launch is listed once, in its first case. `programs` run on a multiprocessor at once, by
registers, warps and shared memory. `waits` are copies that may still be under way when the innermost loop waits for
data, for each wait: 0 means that copying and computing take turns. Nothing runs, so this says nothing about time.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from benchmarks.gpu.compiled_cases import CASES, LAYERS, LEAVES, count_leaf_bytes, make_layer
from benchmarks.support.reporting import table
from engine.cuda.operands import Heads

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
REGISTERS, WARPS, SHARED_BYTES, PROGRAMS = 65536, 64, 228 << 10, 32  # of a multiprocessor of an H100 or H200
COLUMNS = ("kernel", "tile", "case", "registers", "stack", "warps", "programs", "shared KiB", "waits", "wgmma")
# A loop and its body: the lines that are indented further. The lookahead finds loops inside loops, too.
LOOP = re.compile(r"(?=^( *)[^\n]*scf\.for[^\n]*\n((?:\1 [^\n]*\n)+))", re.MULTILINE)


def compile_kernels(cases: Mapping[str, Callable[[], None]]) -> list[dict[str, Any]]:
    """Properties of every different kernel that the cases launch on meta tensors, in the order of the cases.

    From then on Triton launches nothing in this process.
    """
    hopper = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
    )
    driver.set_active(hopper)
    found: dict[str, dict[str, Any]] = {}
    case, run = "", JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        if kernel.hash not in found:
            found[kernel.hash] = {"kernel": self.__name__, "case": case} | properties_of(kernel)
        return kernel

    JITFunction.run = compile_only
    for case, launch in cases.items():  # noqa: B007  # ``compile_only`` reads it
        launch()
    return list(found.values())


def properties_of(kernel: Any) -> dict[str, Any]:
    """Resources and instructions of a compiled kernel, ready for JSON."""
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
    """Programs that a multiprocessor runs at once; a warp's registers come in 256s, and CUDA takes 1 KiB of each."""
    by_registers = REGISTERS // (-(-registers // 8) * 256 * warps)
    return min(PROGRAMS, by_registers, WARPS // warps, SHARED_BYTES // (shared + 1024))


def find_waits(ttgir: str) -> list[int]:
    """Groups of copies that may be pending after each wait in the innermost loops."""
    bodies = [body for _, body in LOOP.findall(ttgir) if "scf.for" not in body]
    return [int(pending) for body in bodies for pending in re.findall(r"async_wait.*num = (\d+)", body)]


def format_row(found: Mapping[str, Any]) -> dict[str, Any]:
    """Cells of the table."""
    is_product = found["kernel"] == "_product"
    tile = "{block_m} x {block_n}, leaves: {leaves}".format(**found["constants"]) if is_product else None
    texts = {name: " ".join(dict.fromkeys(map(str, found[name]))) or None for name in ("waits", "wgmma")}
    return {**found, **texts, "tile": tile, "shared KiB": f"{found['shared'] / 1024:.1f}"}


def leaf_rows() -> Iterator[dict[str, Any]]:
    """Rows of the table of leaves that pass through memory."""
    layers = {"8B": LAYERS["8B"], "70B": make_layer(8192, 28672, Heads(64, 8, 128, 1.0))}
    for name, n_rows in product(layers, (16, 64, 512)):  # of buckets: a step of one row is padded to 16
        leaves, weights = count_leaf_bytes(layers[name], n_rows)
        found = f"{leaves / 1e6:.1f}", f"{weights / 1e6:,.0f}", f"{leaves / weights:.1%}"
        yield {"layer": name, "rows": n_rows} | dict(zip(("leaves, MB", "weights, MB", "share"), found, strict=True))


def main() -> None:
    """Print the table."""
    shown = {"description": __doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser("python -m benchmarks.gpu.compiled", **shown)  # type: ignore[arg-type]
    parser.add_argument("names", nargs="*", metavar="NAME", help="texts in the names of cases (default: all cases)")
    parser.add_argument("--leaves", action="store_true", help="products alone, by the leaves that a program adds up")
    given = parser.parse_args()
    names, cases = given.names or [""], LEAVES if given.leaves else CASES
    chosen = {case: launch for case, launch in cases.items() if any(name in case for name in names)}
    if not chosen:
        parser.error(f"no case has a name with {' or '.join(map(repr, names))}; a name is like {next(iter(cases))!r}")
    print(table({name: name for name in COLUMNS}, map(format_row, compile_kernels(chosen))))
    if given.leaves:
        rows = list(leaf_rows())
        print(table({name: name for name in rows[0]}, rows))


if __name__ == "__main__":
    main()
