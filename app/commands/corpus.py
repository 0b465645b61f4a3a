"""``spectra corpus``: the commands that build snapshots of text and look after them."""

from __future__ import annotations

import argparse

from app.commands import corpus_build as build_command
from app.commands import corpus_store as store_commands


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Make ``parser`` that of ``spectra corpus``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build_command.add(actions)
    store_commands.add(actions)
