"""Everything that decides what a run's records say: kept with them, so that only a run of the same kind goes on."""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from app.inputs.cache import model_hash
from app.inputs.prompts import Question
from app.version import VERSION

NO_SETTINGS = frozenset(
    (
        "command",
        "run",
        "out",
        "restart",
        "model",
        "dtype",
        "prompts",
        "limit",
        "per_category",
        "kv_gib",
        "retrieval_namespace",
    )
)
"""Arguments that say nothing about records, or whose meaning is written down instead: questions, dtype, snapshot."""


def run_settings(
    arguments: argparse.Namespace, path: Path, dtype: torch.dtype, questions: Sequence[Question]
) -> dict[str, Any]:
    """The settings of a run as plain JSON values: what was measured where, and every flag that was given a value."""
    flags = {name: value for name, value in vars(arguments).items() if name not in NO_SETTINGS and value is not None}
    return {
        "version": VERSION,
        "machine": machine(arguments.device),
        "model": f"{path.name} {model_hash(path)[:12]}",
        "prompts": f"{len(questions)} questions, {_digest(questions)}",
        "dtype": str(dtype).removeprefix("torch."),
        **{name: str(value) if isinstance(value, Path) else value for name, value in sorted(flags.items())},
    }


def machine(device: str) -> str:
    """What the times were measured on: processor or GPU, and the version of torch."""
    if device != "cpu":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{_processor()}, {os.cpu_count()} CPUs, torch {torch.__version__}"


def _digest(questions: Sequence[Question]) -> str:
    return hashlib.sha256(msgspec.json.encode(list(questions))).hexdigest()[:12]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
