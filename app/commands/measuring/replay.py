"""``spectra bench --replay``: from flags to records."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from app.bench.records import WARM, BenchSetting, RecordFile, TurnRecord, fingerprint
from app.bench.replay import Replay, ReplayPlan, check_methods
from app.bench.report import publish
from app.commands.measuring.replay_flags import library, replay_config, tokenizer_folder
from app.inputs.prompts import first_of_each
from app.inputs.recordings import encode, read_logs, split
from app.inputs.text_index import index_of
from app.inputs.tokenizers import load_tokenizer
from app.reporting.report import bar
from app.version import VERSION
from engine.errors import ConfigError
from retrieval_store.index.index import FixedLibrary
from retrieval_store.snapshots.corpus import Document
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def replay(arguments: argparse.Namespace) -> dict[str, Any]:
    """Replay the logs, print tables; returns the JSON document. Without ``--out`` nothing else is left of the run.

    Raises:
        ConfigError: a log is wrong, or the folder holds records of other settings; nothing was run.
        UnknownMethodError: a method needs more than text, is unknown, or lacks its corpus.
    """
    if arguments.out is not None:
        return publish(*_replay(arguments, arguments.out), arguments.out)
    with TemporaryDirectory() as folder:
        return {**publish(*_replay(arguments, Path(folder)), Path(folder)), "plots": []}


def _replay(arguments: argparse.Namespace, out: Path) -> tuple[list[TurnRecord], dict[str, Any]]:
    """All records, and what the JSON document says of the run."""
    tokenizer = load_tokenizer(tokenizer_folder(arguments))
    history, test = _logs(arguments)
    plan = ReplayPlan(
        methods=arguments.methods,
        settings=[BenchSetting(warm=state == WARM) for state in arguments.states],
        history=encode(tokenizer, history, "--history") if history else [],
        test=encode(tokenizer, test, "--replay"),
        max_nodes=replay_config(arguments).draft_nodes,
        history_passes=arguments.warm_passes,
    )
    pool = SpeculatorPool(_options(arguments, tokenizer, history))
    check_methods(plan.methods, pool)
    settings = _settings(arguments, plan, tokenizer)
    with RecordFile(out / "records.jsonl", settings, arguments.restart) as file:
        made = Replay(pool, plan, len(tokenizer))
        with bar(None, made.work(file), "turn") as shown:
            made.run(file, shown.update)
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


def _options(
    arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerFast, history: Sequence[Document]
) -> SpeculatorOptions:
    """Settings of the methods; the corpus is the one that is named, else the history."""
    looked_up = library(arguments)
    if looked_up is not None or not history:
        return SpeculatorOptions(retrieval=looked_up)
    indexed = FixedLibrary(index_of(history, tokenizer))
    return SpeculatorOptions(retrieval=lambda: indexed)


def _logs(arguments: argparse.Namespace) -> tuple[list[Document], list[Document]]:
    """(history, test) as the flags choose them."""
    test = read_logs(arguments.replay, arguments.source, "--replay")
    history = read_logs(arguments.history, None, "--history") if arguments.history else []
    if arguments.split is not None:
        history, test = split(test, arguments.split)
        if not history or not test:
            raise ConfigError(f"--split is {arguments.split}: there are too few different prompts for that")
    kept = first_of_each(test[: arguments.limit], lambda document: document.category, arguments.per_category)
    return history, kept


def _settings(arguments: argparse.Namespace, plan: ReplayPlan, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Everything that decides what the records say; methods can be added to a folder later."""
    template, looked_up = str(tokenizer.chat_template), library(arguments)
    return {
        "version": VERSION,
        "tokenizer": _digest((tokenizer.backend_tokenizer.to_str() + template).encode()),
        "test": f"{len(plan.test)} answers, {_digest(msgspec.json.encode(plan.test))}",
        "history": f"{len(plan.history)} answers, {_digest(msgspec.json.encode(plan.history))}",
        "retrieval": None if looked_up is None else looked_up.label,
        "history_passes": plan.history_passes,
        "max_nodes": plan.max_nodes,
    }


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:12]
