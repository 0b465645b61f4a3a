"""``spectra bench --replay``: its flags, their checks, and the run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.config.flags import config_of_flags
from app.config.serve import ServeConfig
from app.inputs.models import is_on_hub, texts_path
from app.inputs.prompts import first_of_each
from app.offline.flags import MODEL, SPECULATION, add_sampling, check_least
from engine.errors import ConfigError
from speculators.methods import method_names

if TYPE_CHECKING:  # torch and Numba load when a replay runs, not when --help prints
    from app.bench.records import TurnRecord
    from app.inputs.libraries import LibraryAt
    from retrieval_store.snapshots.corpus import Document

USED = ("max_nodes", "retrieval", "retrieval_namespace")
"""Flags about models, sampling and speculation that a replay honours; a recorded answer was sampled long ago."""


def add_replay(parser: argparse.ArgumentParser, source: Any) -> None:
    """Add the flags; ``source`` is the group of flags that say what is run, one of which is needed."""
    says = "recorded answers instead of a model, a JSON line each: messages, or prompt or question with answer"
    source.add_argument("--replay", type=Path, nargs="+", metavar="LOGS.jsonl", help=says)
    group = parser.add_argument_group("replay", "flags that go with --replay")
    group.add_argument("--tokenizer", metavar="DIR", help="directory or GGUF file of the model that wrote the answers")
    group.add_argument("--source", metavar="NAME", help="only lines whose 'source' is NAME")
    says = "use this share of the logs (between 0 and 1; by distinct prompts) as history and replay the rest"
    group.add_argument("--split", type=float, metavar="F", help=says)
    says = "earlier conversations: what rest looks up without --retrieval, and what warm methods have seen"
    group.add_argument("--history", type=Path, nargs="+", metavar="H.jsonl", help=says)


def refuse_replay_flags(arguments: argparse.Namespace) -> None:
    """Raise ConfigError if a flag of replays is given without one."""
    for name in ("tokenizer", "source", "split", "history"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name} is only for --replay; leave it out, or give --replay")


def check_replay(arguments: argparse.Namespace) -> None:
    """Raise ConfigError if a flag is missing or out of range; the message names it. Reads no log."""
    if arguments.tokenizer is None:
        raise ConfigError("--tokenizer is missing; --replay needs it to turn the recorded texts into tokens")
    if is_on_hub(arguments.tokenizer):
        raise ConfigError(f"--tokenizer {arguments.tokenizer}: no such directory")
    _refuse_model_flags(arguments)
    if arguments.split is not None and arguments.history:
        raise ConfigError("--split and --history both choose the history; give one of them")
    if arguments.split is not None and not 0 < arguments.split < 1:
        raise ConfigError(f"--split is {arguments.split}; it must be above 0 and below 1")
    check_least(arguments, {"limit": 1, "per_category": 1, "warm_passes": 0})
    for method in arguments.methods:
        method_names(method)
    _library(arguments, _config(arguments))


def _refuse_model_flags(arguments: argparse.Namespace) -> None:
    parser = argparse.ArgumentParser()
    add_sampling(parser)
    defaults = vars(parser.parse_args([])) | {"temperatures": [0.0], "repeats": 1, "raw": False, "batch_size": 1}
    given = [name for name in ("model", *MODEL, *SPECULATION) if name not in USED and hasattr(arguments, name)]
    given += [name for name, default in defaults.items() if getattr(arguments, name, default) != default]
    if given:
        flag = "temperature" if given[0] == "temperatures" else given[0].replace("_", "-")
        raise ConfigError(f"--{flag} has no effect on a replay, which runs no model and samples nothing")


def _config(arguments: argparse.Namespace) -> ServeConfig:
    return config_of_flags(arguments, USED, retrieval="none")


def _library(arguments: argparse.Namespace, config: ServeConfig) -> LibraryAt | None:
    from app.inputs.libraries import library_at

    return library_at(config.retrieval, str(texts_path(arguments.tokenizer)), config.retrieval_namespace)


def replay(arguments: argparse.Namespace) -> tuple[list[TurnRecord], dict[str, Any]]:
    """Replay logs; return the records and the keys that the run adds to the JSON document.

    Raises:
        ConfigError: a log is wrong, or the folder holds records of other settings; nothing was run.
        UnknownMethodError: a method needs more than text, is unknown, or lacks its corpus.
    """
    import msgspec

    from app.bench.records import WARM, BenchSetting, digest, fingerprint
    from app.bench.replay import Replay, check_methods
    from app.bench.schedule import recorded
    from app.inputs.recordings import encode
    from app.inputs.text_index import index_of
    from app.inputs.tokenizers import load_tokenizer
    from app.version import VERSION
    from retrieval_store.index.index import FixedLibrary
    from speculators.method import SpeculatorOptions
    from speculators.pool import SpeculatorPool

    tokenizer, config = load_tokenizer(texts_path(arguments.tokenizer)), _config(arguments)
    history, chosen = _logs(arguments)
    earlier = encode(tokenizer, history, "--history") if history else []
    test = encode(tokenizer, chosen, "--replay")
    library = _library(arguments, config)
    options = SpeculatorOptions(retrieval=library)
    if library is None and history:
        indexed = FixedLibrary(index_of(history, tokenizer))
        options = SpeculatorOptions(retrieval=lambda: indexed)
    pool = SpeculatorPool(options)
    check_methods(arguments.methods, pool)
    states = [BenchSetting(warm=state == WARM) for state in arguments.states]
    nodes, passes = config.draft_nodes, arguments.warm_passes
    # Methods and states can be added to a folder later.
    settings = {
        "version": VERSION,
        "tokenizer": digest((tokenizer.backend_tokenizer.to_str() + str(tokenizer.chat_template)).encode()),
        "test": f"{len(test)} answers, {digest(msgspec.json.encode(test))}",
        "history": f"{len(earlier)} answers, {digest(msgspec.json.encode(earlier))}",
        "retrieval": None if library is None else library.label,
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
    from app.inputs.recordings import read_logs, split

    test = read_logs(arguments.replay, arguments.source, "--replay")
    history = read_logs(arguments.history, None, "--history") if arguments.history else []
    if arguments.split is not None:
        history, test = split(test, arguments.split)
        if not history or not test:
            raise ConfigError(f"--split is {arguments.split}: there are too few different prompts for that")
    return history, first_of_each(test[: arguments.limit], lambda document: document.category, arguments.per_category)
