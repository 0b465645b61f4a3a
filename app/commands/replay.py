"""``spectra bench --replay``: from flags to records."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from app.bench.records import Record, RecordFile, Setting, fingerprint
from app.bench.replay import Plan, Replay, check_methods
from app.bench.report import publish
from app.commands.generate import add_model, add_sampling
from app.demo.paths import DEMO, DEMO_TARGET
from app.inputs.libraries import LibraryAt, library_at
from app.inputs.recordings import encode, read_logs, split
from app.inputs.text_index import index_of
from app.inputs.tokenizers import load_tokenizer
from app.speculation.flags import add_speculation
from app.version import VERSION
from engine.errors import ConfigError
from retrieval_store.index.index import FixedLibrary
from retrieval_store.snapshots.corpus import Document
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions

WARM = "warm"
USED = ("max_nodes", "retrieval", "retrieval_namespace")
"""Flags about models, sampling and speculation that a replay honours; a recorded answer was sampled long ago."""


def replay(arguments: argparse.Namespace) -> dict[str, Any]:
    """Replay the logs, print tables; returns the JSON document. Without ``--out`` nothing else is left of the run.

    Raises:
        ConfigError: a flag or a log is wrong, or the folder holds records of other settings; nothing was run.
        UnknownMethodError: a method needs more than text, is unknown, or lacks its corpus.
    """
    check(arguments)
    if arguments.out is not None:
        return publish(*_replay(arguments, arguments.out), arguments.out)
    with TemporaryDirectory() as folder:
        return {**publish(*_replay(arguments, Path(folder)), Path(folder)), "plots": []}


def _replay(arguments: argparse.Namespace, out: Path) -> tuple[list[Record], dict[str, Any]]:
    """All records, and what the JSON document says of the run."""
    tokenizer = load_tokenizer(_tokenizer(arguments))
    history, test = _logs(arguments)
    plan = Plan(
        methods=arguments.methods,
        settings=[Setting(warm=state == WARM) for state in arguments.states],
        history=encode(tokenizer, history, "--history") if history else [],
        test=encode(tokenizer, test, "--replay"),
        max_nodes=arguments.max_nodes,
        history_passes=arguments.warm_passes,
    )
    pool = SpeculatorPool(_options(arguments, tokenizer, history))
    check_methods(plan.methods, pool)
    settings = _settings(arguments, plan, tokenizer)
    with RecordFile(out / "records.jsonl", settings, arguments.restart) as file:
        made = Replay(pool, plan, len(tokenizer))
        with tqdm(total=made.work(file), unit="turn", file=sys.stderr) as bar:
            made.run(file, bar.update)
        records = [r for r in file.records if r.method in plan.methods and r.setting in plan.settings]
    return records, {
        "model": None,
        "tokenizer": str(arguments.tokenizer),
        "prompts": len(plan.test),
        "history": len(plan.history),
        "prompt_files": [str(name) for name in arguments.replay],
        "fingerprint": fingerprint(settings),
        "settings": settings,
    }


def check(arguments: argparse.Namespace) -> None:
    """Raises ConfigError if a flag is missing or out of range; the message names it. Comes before anything is read."""
    if arguments.tokenizer is None:
        raise ConfigError("--replay needs --tokenizer DIR: the recorded texts have to become tokens")
    if not _tokenizer(arguments).is_dir():
        raise ConfigError(f"--tokenizer {arguments.tokenizer}: no such directory")
    _check_meaning(arguments)
    if arguments.split is not None and arguments.history:
        raise ConfigError("--split and --history both say what the history is: give one of them")
    if arguments.split is not None and not 0 < arguments.split < 1:
        raise ConfigError(f"--split is {arguments.split}; it must be above 0 and below 1")
    least = {"limit": 1, "per_category": 1, "max_nodes": 0, "warm_passes": 0}
    for name, smallest in least.items():
        value = getattr(arguments, name)
        if value is not None and value < smallest:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be at least {smallest}")
    _library(arguments)


def _check_meaning(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be honoured, as far as it differs from its default."""
    parser = argparse.ArgumentParser()
    add_model(parser)
    add_sampling(parser)
    add_speculation(parser)
    defaults = {**vars(parser.parse_args([])), "temperatures": [0.0], "repeats": 1, "raw": False}
    for name, default in defaults.items():
        if name not in USED and getattr(arguments, name, default) != default:
            flag = name.removesuffix("s") if name == "temperatures" else name.replace("_", "-")
            raise ConfigError(f"--{flag} means nothing to a replay, which has neither a model nor sampling")


def _tokenizer(arguments: argparse.Namespace) -> Path:
    return DEMO_TARGET if arguments.tokenizer == DEMO else Path(arguments.tokenizer).expanduser()


def _options(
    arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerFast, history: Sequence[Document]
) -> SpeculatorOptions:
    """Settings of the methods; the corpus is the one that is named, else the history."""
    if arguments.retrieval is not None or not history:
        return SpeculatorOptions(retrieval=_library(arguments))
    library = FixedLibrary(index_of(history, tokenizer))
    return SpeculatorOptions(retrieval=lambda: library)


def _library(arguments: argparse.Namespace) -> LibraryAt | None:
    return library_at(arguments.retrieval, str(_tokenizer(arguments)), arguments.retrieval_namespace)


def _logs(arguments: argparse.Namespace) -> tuple[list[Document], list[Document]]:
    """(history, test) as the flags choose them."""
    test = read_logs(arguments.replay, arguments.source, "--replay")
    history = read_logs(arguments.history, None, "--history") if arguments.history else []
    if arguments.split is not None:
        history, test = split(test, arguments.split)
        if not history or not test:
            raise ConfigError(f"--split is {arguments.split}: there are too few different prompts for that")
    taken: dict[str, int] = {}
    kept = []
    for document in test[: arguments.limit]:
        taken[document.category] = taken.get(document.category, 0) + 1
        if arguments.per_category is None or taken[document.category] <= arguments.per_category:
            kept.append(document)
    return history, kept


def _settings(arguments: argparse.Namespace, plan: Plan, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Everything that decides what the records say; methods can be added to a folder later."""
    template, library = str(tokenizer.chat_template), _library(arguments)
    return {
        "version": VERSION,
        "tokenizer": _digest((tokenizer.backend_tokenizer.to_str() + template).encode()),
        "test": f"{len(plan.test)} answers, {_digest(msgspec.json.encode(plan.test))}",
        "history": f"{len(plan.history)} answers, {_digest(msgspec.json.encode(plan.history))}",
        "retrieval": None if library is None else library.label,
        "history_passes": plan.history_passes,
        "max_nodes": plan.max_nodes,
    }


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:12]
