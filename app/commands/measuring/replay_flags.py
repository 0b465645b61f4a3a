"""Flags of ``spectra bench --replay`` and their checks; loads nothing heavy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.config.flags import config_of_flags
from app.config.serve import ServeConfig
from app.inputs.models import is_on_hub, texts_path
from app.offline.flags import MODEL, SPECULATION, add_sampling, check_least
from engine.errors import ConfigError
from speculators.methods import method_names

if TYPE_CHECKING:
    from app.inputs.libraries import LibraryAt

USED = ("max_nodes", "retrieval", "retrieval_namespace")
"""Flags about models, sampling and speculation that a replay honours; a recorded answer was sampled long ago."""


def add_replay(parser: argparse.ArgumentParser, source: Any) -> None:
    """Add the flags; ``source`` is the group of flags that say what is run, one of which is needed."""
    source.add_argument(
        "--replay",
        type=Path,
        nargs="+",
        metavar="LOGS.jsonl",
        help="recorded answers instead of a model, one per line: messages, or prompt or question with answer; measures "
        "what methods that read only text would have accepted",
    )
    group = parser.add_argument_group("replay", "flags that go with --replay")
    group.add_argument("--tokenizer", metavar="DIR", help="directory or GGUF file of the model that wrote the answers")
    group.add_argument("--source", metavar="NAME", help="only lines whose 'source' is NAME")
    group.add_argument(
        "--split",
        type=float,
        metavar="F",
        help="use this share of the logs (between 0 and 1; by distinct prompts) as history and replay the rest",
    )
    group.add_argument(
        "--history",
        type=Path,
        nargs="+",
        metavar="H.jsonl",
        help="earlier conversations: what rest looks up without --retrieval, and what warm methods have seen before "
        "(--warm-passes times)",
    )


def refuse_replay_flags(arguments: argparse.Namespace) -> None:
    """Raises ConfigError if a flag of replays is given without one."""
    for name in ("tokenizer", "source", "split", "history"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name} is only for --replay; leave it out, or give --replay")


def check_replay(arguments: argparse.Namespace) -> None:
    """Raises ConfigError if a flag is missing or out of range; the message names it. Comes before anything is read."""
    if arguments.tokenizer is None:
        raise ConfigError("--tokenizer is missing; --replay needs it to turn the recorded texts into tokens")
    if is_on_hub(arguments.tokenizer):
        raise ConfigError(f"--tokenizer {arguments.tokenizer}: no such directory")
    _check_meaning(arguments)
    if arguments.split is not None and arguments.history:
        raise ConfigError("--split and --history both choose the history; give one of them")
    if arguments.split is not None and not 0 < arguments.split < 1:
        raise ConfigError(f"--split is {arguments.split}; it must be above 0 and below 1")
    check_least(arguments, {"limit": 1, "per_category": 1, "warm_passes": 0})
    for method in arguments.methods:
        method_names(method)
    library(arguments)


def _check_meaning(arguments: argparse.Namespace) -> None:
    """Raise ConfigError if a flag was given that only a run of a model has."""
    parser = argparse.ArgumentParser()
    add_sampling(parser)
    defaults = vars(parser.parse_args([])) | {"temperatures": [0.0], "repeats": 1, "raw": False, "batch_size": 1}
    given = [name for name in ("model", *MODEL, *SPECULATION) if name not in USED and hasattr(arguments, name)]
    given += [name for name, default in defaults.items() if getattr(arguments, name, default) != default]
    if given:
        flag = "temperature" if given[0] == "temperatures" else given[0].replace("_", "-")
        raise ConfigError(f"--{flag} has no effect on a replay, which runs no model and samples nothing")


def replay_config(arguments: argparse.Namespace) -> ServeConfig:
    """Return the configuration with the fields that a replay uses."""
    return config_of_flags(arguments, USED, retrieval="none")


def library(arguments: argparse.Namespace) -> LibraryAt | None:
    """The library that ``--retrieval`` names; None: none is named.

    Raises:
        ConfigError: there is nothing of that name.
    """
    from app.inputs.libraries import library_at

    config = replay_config(arguments)
    return library_at(config.retrieval, str(texts_path(arguments.tokenizer)), config.retrieval_namespace)
