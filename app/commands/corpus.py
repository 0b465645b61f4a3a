"""``spectra corpus``: the commands that build snapshots of text and look after them."""

from __future__ import annotations

from typing import Any

from app.commands import corpus_build as build_command
from app.commands import corpus_store as store_commands


def add(commands: Any) -> None:
    """Add the group."""
    corpus = commands.add_parser("corpus", help="build snapshots of text for retrieval, and look after them")
    actions = corpus.add_subparsers(dest="action", required=True, metavar="ACTION")
    build_command.add(actions)
    store_commands.add(actions)
