"""``spectra bench`` on a model: from the flags to records."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from msgspec.structs import replace
from tqdm import tqdm

from app.bench.records import Record, RecordFile, Setting, fingerprint
from app.bench.runs import Bench, Plan
from app.bench.settings import run_settings
from app.inputs.libraries import LibraryAt
from app.inputs.prompts import Question, read_questions
from app.inputs.tokenizers import load_tokenizer
from app.offline.setup import check_flags, load_target, model_path, sampling
from app.speculation.flags import speculator_options
from engine.errors import ConfigError
from engine.target.local import LocalTarget, resolve_dtype
from speculators.pool import SpeculatorPool

WARM = "warm"


def measure(arguments: argparse.Namespace) -> tuple[list[Record], dict[str, Any]]:
    """Run the methods; returns all records and what the JSON document says of the run.

    Raises:
        ConfigError: something cannot be run, or the folder holds records of other settings; nothing was run.
        KeyboardInterrupt: Ctrl-C; what was measured is kept.
    """
    check(arguments)
    torch.set_num_threads(arguments.threads)
    questions = read(arguments)
    path = model_path(arguments.model)
    target = load_target(arguments)
    options = speculator_options(arguments, path, target.info.spec, target)
    plan = _plan(arguments, questions, target)
    states = {setting.warm for setting in plan.settings}
    pools = {is_warm: SpeculatorPool(options.warm() if is_warm else options) for is_warm in states}
    bench = Bench(target, load_tokenizer(path), pools, plan)
    bench.check()
    dtype = resolve_dtype(arguments.dtype, target.info.spec, arguments.device)
    settings = run_settings(arguments, path, dtype, questions)
    if isinstance(options.retrieval, LibraryAt):  # which text that was; and the flag may hold a password
        settings["retrieval"] = options.retrieval.label
    with RecordFile(arguments.out / "records.jsonl", settings, arguments.restart) as file:
        _run(bench, file)
        records = file.records
    return records, {
        "model": str(arguments.model),
        "prompts": len(questions),
        "prompt_files": [str(name) for name in arguments.prompts],
        "notes": _notes(plan),
        "fingerprint": fingerprint(settings),
        "settings": settings,
    }


def check(arguments: argparse.Namespace) -> None:
    """Raises ConfigError if a value is out of range; the message names the flag. Comes before anything loads."""
    for temperature in arguments.temperatures:
        check_flags(argparse.Namespace(**vars(arguments), temperature=temperature))
    per_category = 1 if arguments.per_category is None else arguments.per_category
    least = {
        "--repeats": (arguments.repeats, 1),
        "--warm-passes": (arguments.warm_passes, 0),
        "--per-category": (per_category, 1),
    }
    for flag, (value, smallest) in least.items():
        if value < smallest:
            raise ConfigError(f"{flag} is {value}; it must be at least {smallest}")


def read(arguments: argparse.Namespace) -> list[Question]:
    """The questions the flags ask for, each with a category.

    Raises:
        ConfigError: a file is wrong, or there is no question.
    """
    questions: list[Question] = []
    taken: dict[str, int] = {}
    for path in arguments.prompts:
        for question in read_questions(path, arguments.limit):
            category = question.category or path.stem
            taken[category] = taken.get(category, 0) + 1
            if arguments.per_category is None or taken[category] <= arguments.per_category:
                questions.append(replace(question, category=category))
    if not questions:
        raise ConfigError("--prompts: there is no question in it")
    return questions


def _notes(plan: Plan) -> list[str]:
    """What readers of warm figures must know."""
    if not any(setting.warm for setting in plan.settings):
        return []
    if plan.warm_passes == 0:
        return ["Warm: measured in one pass, in which every turn finds what the turns before it left."]
    times = "one pass" if plan.warm_passes == 1 else f"{plan.warm_passes} passes"
    return [f"Warm: measured after {times} over the same prompts; methods that remember outputs have seen the answers."]


def _run(bench: Bench, file: RecordFile) -> None:
    bar = tqdm(total=bench.work(file), unit="turn", file=sys.stderr)
    try:
        bench.run(file, bar.update)
    except KeyboardInterrupt:
        bar.close()
        kept = f"{len(file.records)} records are kept in {file.path}"
        print(f"spectra: stopped; {kept}, and the same command goes on from there", file=sys.stderr)
        raise
    finally:
        bar.close()


def _plan(arguments: argparse.Namespace, questions: list[Question], target: LocalTarget) -> Plan:
    first = argparse.Namespace(**vars(arguments), temperature=arguments.temperatures[0])
    return Plan(
        methods=arguments.methods,
        settings=[Setting(t, state == WARM) for t in arguments.temperatures for state in arguments.states],
        questions=questions,
        params=sampling(first, target),
        repeats=arguments.repeats,
        batch_size=arguments.batch_size,
        max_nodes=arguments.max_nodes,
        raw=arguments.raw,
        warm_passes=arguments.warm_passes,
    )
