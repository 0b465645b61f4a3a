"""Flags of ``spectra bench --replay``; loads nothing heavy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from engine.errors import ConfigError


def add_replay(parser: argparse.ArgumentParser, source: Any) -> None:
    """Add the flags; ``source`` is the group of flags that say what is run, one of which is needed."""
    source.add_argument(
        "--replay",
        type=Path,
        nargs="+",
        metavar="LOGS.jsonl",
        help="recorded answers instead of a model: conversations (messages), or prompt or question with answer, one "
        "per line; tells what text-only methods would have accepted",
    )
    group = parser.add_argument_group("replay", "flags that go with --replay")
    group.add_argument("--tokenizer", metavar="DIR", help="directory with the tokenizer of the model that answered")
    group.add_argument("--source", metavar="NAME", help="only lines of which 'source' is NAME")
    group.add_argument(
        "--split",
        type=float,
        metavar="F",
        help="this share of the logs (0 to 1, by distinct prompts, evenly spread) is history, the rest is replayed",
    )
    group.add_argument(
        "--history",
        type=Path,
        nargs="+",
        metavar="H.jsonl",
        help="earlier conversations: what retrieval looks up where --retrieval names nothing else, and, warm, what "
        "methods have seen before (--warm-passes times)",
    )


def refuse_replay_flags(arguments: argparse.Namespace) -> None:
    """Raises ConfigError if a flag of replays is given without one."""
    for name in ("tokenizer", "source", "split", "history"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name} goes with --replay")
