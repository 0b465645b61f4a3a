"""Checks for a machine with a GPU that is at hand briefly.

A bare checkout is enough, nothing is downloaded: models are random weights of Llama 8B and 70B geometry, made on the
GPU. Needed are torch 2.11 or later, transformers, numpy, numba and msgspec, Python 3.11 or later.

    python3 -m benchmarks.gpu all --out out --budget 9      # and again, until all are done: it resumes
    python3 -m benchmarks.gpu probe invariance --out out    # two of them
    python3 -m benchmarks.gpu all --tiny                    # before: does everything run? a minute, on a CPU
    python3 -m benchmarks.gpu all --tiny --device cuda --out tiny      # there, first: the same for its branches
    python3 -m benchmarks.gpu tables --out out              # after: all tables
    python3 -m benchmarks.gpu wheels DIR                    # before: what the machine lacks; wheels --help

Each check prints its table last and leaves OUT/NAME.json (table, figures, machine, commit, arguments), which is
written after each part, so that a fault leaves the others. `all` begins with what decides most, gives each check a
process and a limit, goes on after a failure, and skips what is there already of the same sources and arguments
(--again: does not); a check of which parts came too late runs again. Exit status 1: something failed, or is missing
for want of time.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.running import wheels
from benchmarks.gpu.running.checks import CHECKS

ALL, TABLES = "all", "tables"


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    epilog = "checks:\n" + "\n".join(
        f"  {check.name:<12}{check.question} ({check.minutes:g} min)" for check in CHECKS.values()
    )
    shown = {"description": __doc__, "epilog": epilog, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser("python3 -m benchmarks.gpu", **shown)  # type: ignore[arg-type]
    names = [*CHECKS, ALL, TABLES]
    parser.add_argument("names", nargs="+", metavar="NAME", choices=names, help="a check, all, or tables")
    parser.add_argument("--out", type=Path, default=Path("gpu"), help="folder for the results (default: gpu)")
    parser.add_argument("--tiny", action="store_true", help="small sizes, on a CPU unless --device says otherwise")
    parser.add_argument("--device", help="default: cuda; cpu with --tiny")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), help="default: bfloat16; float32 on cpu")
    parser.add_argument("--minutes", type=float, default=10, help="limit of a check (default: 10)")
    parser.add_argument("--budget", type=float, default=60, help="minutes for all checks together (default: 60)")
    parser.add_argument("--again", action="store_true", help="run checks that are done already as well")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["wheels"]:
        return wheels.main(arguments[1:])
    asked = parsed(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started is ended, too
    import torch  # here, so that --help needs none

    from benchmarks.gpu.running.results import tables
    from benchmarks.gpu.running.runner import MARGIN, Limits, run_all, run_here
    from benchmarks.gpu.setting import Setting

    if asked.names == [TABLES]:
        print(tables(asked.out))
        return 0
    device = torch.device(asked.device or ("cpu" if asked.tiny else "cuda"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("benchmarks.gpu: torch finds no CUDA device; --tiny runs small sizes on a CPU")
    if device.type == "cpu":
        torch.set_num_threads(1)  # small sizes: more threads wait for each other
    dtype = getattr(torch, asked.dtype or ("float32" if device.type == "cpu" else "bfloat16"))
    asked.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * MARGIN * asked.minutes
    setting = Setting(device, dtype, asked.tiny, asked.out.resolve(), deadline)
    if len(asked.names) == 1 and asked.names != [ALL]:
        return run_here(CHECKS[asked.names[0]], setting)
    checks = list(CHECKS.values()) if ALL in asked.names else [CHECKS[name] for name in asked.names]
    flags = ["--out", str(setting.out), "--device", str(device), "--dtype", setting.dtype_name]
    flags += ["--tiny"] * asked.tiny
    return run_all(checks, setting, Limits(asked.minutes, asked.budget), flags, asked.again)


if __name__ == "__main__":
    raise SystemExit(main())
