"""``spectra bench`` on a model: from the flags to records, and to the settings that are kept with them."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import torch

from app.bench.records import WARM, BenchSetting, TurnRecord, digest, fingerprint
from app.bench.runs import BenchPlan, BenchRunner
from app.bench.schedule import recorded
from app.config.serve import ServeConfig
from app.inputs.libraries import LibraryAt
from app.inputs.models import model_path
from app.inputs.prompts import Question
from app.inputs.tokenizers import load_tokenizer
from app.offline.flags import n_threads
from app.offline.setup import load_target, sampling, speculator_options
from app.version import VERSION
from engine.model.identity import model_hash
from engine.target_model.numerics import resolve_dtype
from speculators.pool import SpeculatorPool
from speculators.registry import warmed

UNRECORDED = frozenset(
    ("command", "run", "out", "restart", "model", "dtype", "prompts", "limit", "per_category", "kv_gib")
) | {"retrieval_namespace"}
"""Flags that do not change records, or that the settings hold in another form: questions, dtype, snapshot."""


def measure(
    arguments: argparse.Namespace, config: ServeConfig, questions: list[Question]
) -> tuple[list[TurnRecord], dict[str, Any]]:
    """Run the methods on ``questions``; returns all records and the keys that the run adds to the JSON document.

    Raises ConfigError if a method or question cannot be run, or the folder holds records of other settings.
    """
    path = model_path(config.model, config.revision)
    target = load_target(config)
    options = speculator_options(config, arguments.methods, path, target)
    plan = BenchPlan(
        methods=arguments.methods,
        settings=[BenchSetting(t, state == WARM) for t in arguments.temperatures for state in arguments.states],
        questions=questions,
        params=sampling(arguments, arguments.temperatures[0], target),
        repeats=arguments.repeats,
        batch_size=arguments.batch_size,
        max_nodes=config.draft_nodes,
        raw=arguments.raw,
        warm_passes=arguments.warm_passes,
    )
    states = {setting.warm for setting in plan.settings}
    pools = {is_warm: SpeculatorPool(warmed(options) if is_warm else options) for is_warm in states}
    bench = BenchRunner(target, load_tokenizer(path), pools, plan)
    bench.check()
    dtype = resolve_dtype(config.dtype, target.info.spec, config.device)
    settings = run_settings(arguments, config, path, dtype, questions)
    if isinstance(options.retrieval, LibraryAt):  # the label names the snapshot; the flag may hold a password
        settings["retrieval"] = options.retrieval.label
    return recorded(bench, arguments.out, settings, arguments.restart), {
        "model": config.model,
        "prompts": len(questions),
        "prompt_files": [str(name) for name in arguments.prompts],
        "notes": _notes(plan),
        "fingerprint": fingerprint(settings),
        "settings": settings,
    }


def _notes(plan: BenchPlan) -> list[str]:
    if not any(setting.warm for setting in plan.settings):
        return []
    if plan.warm_passes == 0:
        return ["Warm: measured in one pass, in which speculators know at every turn the turns before it."]
    times = "one pass" if plan.warm_passes == 1 else f"{plan.warm_passes} passes"
    return [f"Warm: measured after {times} over the same prompts; methods that remember outputs have seen the answers."]


def run_settings(
    arguments: argparse.Namespace, config: ServeConfig, path: Path, dtype: torch.dtype, questions: Sequence[Question]
) -> dict[str, Any]:
    """The settings that decide the records: version, machine, model, questions, given flags."""
    flags = vars(arguments) | config.model_dump(
        exclude_unset=True, exclude={"stage_gpus", "speculator_actors", "speculator_gpus"}
    )
    flags = {name: value for name, value in flags.items() if name not in UNRECORDED and value is not None}
    return {
        "version": VERSION,
        "machine": machine(config.device),
        "model": f"{path.name} {model_hash(path)[:12]}",
        "prompts": f"{len(questions)} questions, {digest(msgspec.json.encode(list(questions)))}",
        "dtype": str(dtype).removeprefix("torch."),
        "threads": n_threads(config),
        **{name: str(value) if isinstance(value, Path) else value for name, value in sorted(flags.items())},
    }


def machine(device: str) -> str:
    """The hardware that times were measured on, and the version of torch."""
    if device != "cpu":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    processor = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), processor)
    return f"{processor}, {os.cpu_count()} CPUs, torch {torch.__version__}"
