"""``spectra completion``: completion of commands, flags, files and values in a shell."""

from __future__ import annotations

import argparse
from typing import Any

from engine.errors import require_extra

SHELLS = ("bash", "zsh", "fish")
VALUES_OF = ("--method",)  # flags that take the name of a method
FILES = {"FILE", "F", "F.jsonl", "F.json", "H.jsonl", "LOGS.jsonl"}  # metavars
DESCRIPTION = """\
Print a script that completes commands, flags, files, and the values of flags that have few. For a session, or from its
start-up file:

  eval "$(spectra completion bash)"                                           ~/.bashrc
  spectra completion zsh > ~/.zfunc/_spectra                                  with ~/.zfunc in fpath, before compinit
  spectra completion fish > ~/.config/fish/completions/spectra.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Make ``parser`` that of ``spectra completion``."""
    parser.add_argument("shell", choices=SHELLS, help="whose language")
    parser.set_defaults(parser=None)  # the whole one: app.cli gives it


def run(arguments: argparse.Namespace) -> int:
    """Print the script; returns the exit status."""
    require_extra("completion", "spectra completion")
    import shtab

    _prepare(arguments.parser)
    print(shtab.complete(arguments.parser, arguments.shell))
    return 0


def _prepare(parser: Any) -> None:
    """Add the arguments of all commands below, and what completes their values."""
    import shtab

    if hasattr(parser, "fill"):
        parser.fill()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                _prepare(one)
        elif action.choices is None and (values := _values(action)):
            action.choices = values
        elif (kind := _kind(action.metavar)) is not None:
            action.complete = getattr(shtab, kind)


def _values(action: argparse.Action) -> list[str]:
    """The values of a flag that has few of them, as its metavar shows them."""
    from speculators.methods import all_methods

    if set(action.option_strings) & set(VALUES_OF):
        return sorted(all_methods())
    shown = action.metavar if isinstance(action.metavar, str) else ""
    return shown[1:-1].split(",") if shown.startswith("{") else []


def _kind(metavar: object) -> str | None:
    """The kind of path that a metavar stands for; None: no path."""
    names = set(str(metavar or "").replace("|", " ").split())
    if names & FILES:
        return "FILE"
    return "DIRECTORY" if "DIR" in names else None
