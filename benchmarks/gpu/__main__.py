"""Are results right on a GPU, and how fast are steps? Checks in the order in which they decide most.

    python3 -m benchmarks.gpu first --out out       # eight minutes: are results right, and how fast are steps?
    python3 -m benchmarks.gpu exact --out out       # then, in this order: exact, kernels, seventy
    python3 -m benchmarks.gpu first --tiny          # before: the same code, small, on a CPU, in three minutes

A bare checkout is enough and nothing is downloaded: models have random weights in the geometry of Llama 8B and 70B,
made on the GPU. Needed are Python 3.11 or later, torch 2.11 or later with CUDA, Triton, a C compiler, Python's headers,
transformers, numpy, numba and msgspec. A wheel of msgspec for a machine that lacks it:

    pip download msgspec==0.22.0 --no-deps --only-binary=:all: --python-version 3.12 \\
        --platform manylinux_2_17_x86_64 --platform manylinux_2_28_x86_64 -d DIR
    pip install --no-index --no-deps --target /tmp/site DIR/*.whl; export PYTHONPATH=/tmp/site        # there

Every command prints a table after each part, and writes OUT/COMMAND.json after every row. A part that fails or reaches
its time limit ends alone: the next part runs in a new process. OUT/results.tar.gz holds all results of the folder. If
the budget runs out, run the other parts with --parts, and another --out to keep the first results. The last line of
stdout is one JSON document with the outcome of every part. The exit status is 1 if a part failed, was not started, or
found a wrong result.
"""

from __future__ import annotations

import argparse
import ast
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

COMMANDS = ("first", "exact", "kernels", "seventy")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; a command's docstring is its help."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python3 -m benchmarks.gpu", description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        text = ast.get_docstring(ast.parse(source)) or ""  # help needs neither torch nor Triton
        one = commands.add_parser(name, help=text.partition("\n")[0], description=text, formatter_class=raw)
        one.add_argument("--parts", help="names of parts to run, separated by commas (default: all)")
        one.add_argument("--budget", type=float, default=9, help="minutes for all parts together (default: 9)")
        one.add_argument("--tiny", action="store_true", help="small sizes on a CPU, to see that everything runs")
        one.add_argument("--out", type=Path, default=Path("gpu"), help="folder of the results (default: gpu)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    began, parser = time.monotonic(), make_parser()
    given = parser.parse_args(arguments)
    if given.tiny:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # also ends the worker
    import torch

    from benchmarks.gpu.runner import load_parts, run_parts
    from benchmarks.gpu.setting import GpuSetting

    if not given.tiny and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device; --tiny runs small sizes on a CPU")
    known = list(load_parts(given.command))
    names = given.parts.split(",") if given.parts else known
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"{given.command} has no part {', '.join(unknown)}; its parts are {', '.join(known)}")
    setting, minutes = GpuSetting(torch.device("cpu" if given.tiny else "cuda")), (time.monotonic() - began) / 60
    return run_parts(given.command, names, setting, given.out.resolve(), given.budget - minutes)


if __name__ == "__main__":
    raise SystemExit(main())
