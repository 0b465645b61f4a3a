"""``spectra bench --replay``: from flags to records."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from app.bench.records import WARM, BenchSetting, TurnRecord, digest, fingerprint
from app.bench.replay import Replay, check_methods
from app.bench.schedule import recorded
from app.commands.measuring.replay_flags import library, replay_config
from app.inputs.models import texts_path
from app.inputs.prompts import first_of_each
from app.inputs.recordings import encode, read_logs, split
from app.inputs.text_index import index_of
from app.inputs.tokenizers import load_tokenizer
from app.version import VERSION
from engine.errors import ConfigError
from retrieval_store.index.index import FixedLibrary
from retrieval_store.snapshots.corpus import Document
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool


def replay(arguments: argparse.Namespace) -> tuple[list[TurnRecord], dict[str, Any]]:
    """Replay logs; returns the records and the keys that the run adds to the JSON document.

    Raises:
        ConfigError: a log is wrong, or the folder holds records of other settings; nothing was run.
        UnknownMethodError: a method needs more than text, is unknown, or lacks its corpus.
    """
    tokenizer = load_tokenizer(texts_path(arguments.tokenizer))
    history, chosen = _logs(arguments)
    earlier = encode(tokenizer, history, "--history") if history else []
    test = encode(tokenizer, chosen, "--replay")
    looked_up = library(arguments)
    options = SpeculatorOptions(retrieval=looked_up)
    if looked_up is None and history:
        indexed = FixedLibrary(index_of(history, tokenizer))
        options = SpeculatorOptions(retrieval=lambda: indexed)
    pool = SpeculatorPool(options)
    check_methods(arguments.methods, pool)
    states = [BenchSetting(warm=state == WARM) for state in arguments.states]
    nodes, passes = replay_config(arguments).draft_nodes, arguments.warm_passes
    # Methods and states can be added to a folder later.
    settings = {
        "version": VERSION,
        "tokenizer": digest((tokenizer.backend_tokenizer.to_str() + str(tokenizer.chat_template)).encode()),
        "test": f"{len(test)} answers, {digest(msgspec.json.encode(test))}",
        "history": f"{len(earlier)} answers, {digest(msgspec.json.encode(earlier))}",
        "retrieval": None if looked_up is None else looked_up.label,
        "history_passes": passes,
        "max_nodes": nodes,
    }
    run = Replay(pool, arguments.methods, states, earlier, test, nodes, passes, len(tokenizer))
    return recorded(run, arguments.out, settings, arguments.restart), {
        "model": None,
        "tokenizer": str(arguments.tokenizer),
        "prompts": len(test),
        "history": len(earlier),
        "prompt_files": [str(name) for name in arguments.replay],
        "fingerprint": fingerprint(settings),
        "settings": settings,
    }


def _logs(arguments: argparse.Namespace) -> tuple[list[Document], list[Document]]:
    """(history, test) as the flags choose them."""
    test = read_logs(arguments.replay, arguments.source, "--replay")
    history = read_logs(arguments.history, None, "--history") if arguments.history else []
    if arguments.split is not None:
        history, test = split(test, arguments.split)
        if not history or not test:
            raise ConfigError(f"--split is {arguments.split}: there are too few different prompts for that")
    return history, first_of_each(test[: arguments.limit], lambda document: document.category, arguments.per_category)
