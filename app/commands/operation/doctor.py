"""``spectra doctor``: whether this machine has what a server needs."""

from __future__ import annotations

import argparse
import json

from app.inputs.devices import AUTO
from app.inputs.stores import DEFAULT_NAMESPACE

DESCRIPTION = """\
Look whether this machine has what a server needs, one line each: ok, warning or problem, and what to do about it.
Nothing is started; of a model on the hub, what describes it is fetched. Exit status 1: there is a problem.

  spectra doctor
  spectra doctor --model DIR --stages 4 --kv-gib 120                           does it fit this machine's GPUs?
  spectra doctor --model DIR --stages 4 --kv-gib 120 --gpu-memory-gib 80       or those of another?
  spectra doctor --redis rediss://host:6379 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Make ``parser`` that of ``spectra doctor``."""
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="interface that a server would listen on (default: 127.0.0.1)")
    add("--port", type=int, default=8000, metavar="N", help="port that it would listen on (default: 8000)")
    add("--redis", metavar="URL", help="a store of snapshots that must answer: redis://.., rediss://.. or a folder")
    add("--namespace", default=DEFAULT_NAMESPACE, metavar="NS", help=f"of the store (default: {DEFAULT_NAMESPACE})")
    add("--model", metavar="M", help="does it load, and fit? A directory, a .gguf file or a hub id")
    add("--stages", type=int, default=1, metavar="P", help="of its pipeline (default: 1)")
    add(
        "--kv-gib",
        type=cache_gib,
        default=AUTO,
        metavar="X",
        help="KV cache over all stages, GiB; auto: what GPUs have left, 0.5 on a CPU (default: auto)",
    )
    add(
        "--gpu-memory-gib",
        type=float,
        metavar="X",
        help="of the GPU that a stage has (default: that of this machine's GPUs; without one, its main memory)",
    )
    add("--usable", type=float, default=0.9, metavar="S", help="share of it for weights and KV cache (default: 0.9)")
    add("--dtype", metavar="D", help="float32, bfloat16 or float16 (default: as `spectra serve`)")
    add("--quantization", choices=["int8", "fp8"], help="int8 (on a CPU: extra int8) or fp8 matrices in the layers")
    add("--generation-config", choices=["auto", "none"], default=AUTO, help="as `spectra serve` (default: auto)")
    add("--json", action="store_true", help="one JSON object instead of lines")


def cache_gib(given: str) -> float | str:
    """Return GiB of KV cache, or ``auto``; the range is checked later."""
    try:
        return given if given == AUTO else float(given)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{given!r} must be above 0 (GiB), or auto") from None


def run(arguments: argparse.Namespace) -> int:
    """Look and tell; returns the exit status."""
    from app.doctor.findings import PROBLEM, text
    from app.doctor.look import look

    found = list(look(arguments))
    n_problems = sum(one.status == PROBLEM for one in found)
    if arguments.json:
        print(json.dumps({"ok": not n_problems, "findings": [one.as_json() for one in found]}))
    else:
        print(text(found))
    return int(n_problems > 0)
