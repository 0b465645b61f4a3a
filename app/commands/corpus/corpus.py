"""``spectra corpus``: the commands that build snapshots of text and look after them."""

from __future__ import annotations

import argparse

from app.commands.corpus import build, store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Make ``parser`` that of ``spectra corpus``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build.add(actions)
    store.add(actions)
