"""``spectra doctor``: whether this machine has what a server needs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from app.inputs.devices import AUTO
from app.inputs.stores import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from app.doctor.findings import Finding

DESCRIPTION = """\
Check whether this machine has what a server needs. Each line is ok, warning or problem, with what to do about it.
Nothing is started. Of a model on the hub, only configuration and tokenizer are fetched. Exit status 1: there is a
problem.

  spectra doctor
  spectra doctor --model DIR --stages 4 --kv-gib 120                           does it fit this machine's GPUs?
  spectra doctor --model DIR --stages 4 --kv-gib 120 --gpu-memory-gib 80       does it fit other GPUs?
  spectra doctor --redis rediss://host:6379 --json
"""
SETUP = ("model", "stages", "kv_gib", "dtype", "quantization", "generation_config")  # flags of `spectra serve` too


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="interface that a server would listen on (default: 127.0.0.1)")
    add("--port", type=int, default=8000, metavar="N", help="port that it would listen on (default: 8000)")
    add("--redis", metavar="URL", help="a store of snapshots that must answer: redis://.., rediss://.. or a folder")
    add("--namespace", default=DEFAULT_NAMESPACE, metavar="NS", help=f"of the store (default: {DEFAULT_NAMESPACE})")
    add("--model", metavar="M", help="check that it loads and fits; a directory, a .gguf file or a hub id")
    add("--stages", type=int, default=1, metavar="P", help="pipeline stages of the model (default: 1)")
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
        help="memory of the GPU of a stage (default: that of this machine's GPUs, or its main memory if it has none)",
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
    from app.reporting.report import columns

    found = list(_check(arguments))
    n_problems = sum(one.status == "problem" for one in found)
    if arguments.json:
        print(json.dumps({"ok": not n_problems, "findings": [asdict(one) for one in found]}))
    else:
        rows = [(one.status, one.name, f"{one.says}; {one.remedy}" if one.remedy else one.says) for one in found]
        print(columns(rows, (0, 1, 2)))
    return int(n_problems > 0)


def _check(given: argparse.Namespace) -> Iterator[Finding]:
    """Yield all findings in the order of the report.

    Raises:
        ConfigError: a flag is out of range.
    """
    from app.config.errors import config_of
    from app.config.flags import flag
    from app.doctor.machine import check_folders, check_gpus, check_numerics
    from app.doctor.model import check_fit
    from app.doctor.network import check_ports, check_ray_token, check_store
    from app.doctor.software import check_software
    from app.planning.sizes import usable_bytes

    usable_bytes(1.0 if given.gpu_memory_gib is None else given.gpu_memory_gib, given.usable)
    setup = {name: getattr(given, name) for name in SETUP}
    config = config_of({name: value for name, value in setup.items() if value is not None}, flag)
    yield from check_software()
    yield from check_gpus()
    yield check_numerics(given.model, given.dtype, given.quantization)
    yield from check_folders()
    yield from check_ports(given.host, given.port)
    yield check_ray_token()
    if given.redis is not None:
        yield check_store(given.redis, given.namespace)
    if given.model is not None:
        yield from check_fit(config, given.gpu_memory_gib, given.usable)
