"""``spectra doctor``: whether this machine has what a server needs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from app.config.flags import add_group, add_help_all, config_of_flags
from app.inputs.stores import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from app.doctor import Finding

DESCRIPTION = """\
Check whether this machine has what a server needs. Each line is ok, warning or problem, with what to do about it.
Nothing is started. Of a model on the hub, only configuration and tokenizer are fetched. Exit status 1: there is a
problem.

  spectra doctor
  spectra doctor --model DIR --stages 4 --kv-gib 120                           does it fit this machine's GPUs?
  spectra doctor --model DIR --stages 4 --kv-gib 120 --gpu-memory-gib 80       does it fit other GPUs?
  spectra doctor --redis rediss://host:6379 --json
"""
FIELDS = ("stages", "tensor_parallel", "kv_gib", "dtype", "quantization", "generation_config")  # with --model
MODEL = "Whether a model loads and fits, with these flags of `spectra serve`."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="interface that a server would listen on (default: 127.0.0.1)")
    add("--port", type=int, default=8000, metavar="N", help="port that it would listen on (default: 8000)")
    add("--redis", metavar="URL", help="a store of snapshots that must answer: redis://.., rediss://.. or a folder")
    add("--namespace", default=DEFAULT_NAMESPACE, metavar="NS", help=f"of the store (default: {DEFAULT_NAMESPACE})")
    add("--model", metavar="M", help="check that it loads and fits; a directory, a .gguf file or a hub id")
    gpu = "memory of a stage's GPU (default: that of this machine's GPUs, or its main memory if it has none)"
    add("--gpu-memory-gib", type=float, metavar="X", help=gpu)
    add("--usable", type=float, default=0.9, metavar="S", help="share of it for weights and KV cache (default: 0.9)")
    add("--json", action="store_true", help="one JSON object instead of lines")
    add_group(parser, "model", MODEL, FIELDS)
    add_help_all(parser)


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
    """Yield all findings in the order of the report; raise ConfigError if a flag is out of range."""
    from app.doctor.machine import check_folders, check_gpus, check_numerics
    from app.doctor.model import check_fit
    from app.doctor.network import check_ports, check_ray_token, check_store
    from app.doctor.software import check_software
    from app.planning.sizes import usable_bytes

    usable_bytes(1.0 if given.gpu_memory_gib is None else given.gpu_memory_gib, given.usable)
    config = config_of_flags(given, FIELDS, **({} if given.model is None else {"model": given.model}))
    yield from check_software()
    yield from check_gpus()
    yield check_numerics(given.model, config.dtype, config.quantization)
    yield from check_folders()
    yield from check_ports(given.host, given.port)
    yield check_ray_token()
    if given.redis is not None:
        yield check_store(given.redis, given.namespace)
    if given.model is not None:
        yield from check_fit(config, given.gpu_memory_gib, given.usable)
