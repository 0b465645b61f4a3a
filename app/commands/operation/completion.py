"""``spectra completion``: prints the script that completes commands, flags, files and values in a shell."""

from __future__ import annotations

import argparse
from typing import Any

from engine.errors import require_extra

SHELLS = ("bash", "zsh", "fish")
FILES = {"FILE", "F", "F.jsonl", "F.json", "H.jsonl", "LOGS.jsonl"}  # metavars of paths
DESCRIPTION = """\
Print a script that completes commands, flags, files, and the values of flags that have few. Load it for a session, or
from the shell's start-up file:

  eval "$(spectra completion bash)"                                           ~/.bashrc
  spectra completion zsh > ~/.zfunc/_spectra                                  with ~/.zfunc in fpath, before compinit
  spectra completion fish > ~/.config/fish/completions/spectra.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")
    parser.set_defaults(parser=None)  # app.cli sets it to that of all commands


def run(arguments: argparse.Namespace) -> int:
    require_extra("completion", "spectra completion")
    import shtab

    _prepare(arguments.parser)
    print(shtab.complete(arguments.parser, arguments.shell))
    return 0


def _prepare(parser: Any) -> None:
    """Add the arguments of all subcommands, and what completes their values."""
    import shtab

    from speculators.methods import all_methods

    if hasattr(parser, "fill"):
        parser.fill()
    for action in parser._actions:
        action.help = getattr(action, "full_help", action.help)  # advanced flags are completed, too
        shown = action.metavar if isinstance(action.metavar, str) else ""
        words = set(shown.replace("|", " ").split())
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                _prepare(one)
        elif action.choices is not None:
            continue
        elif "--method" in action.option_strings:
            action.choices = sorted(all_methods())
        elif shown.startswith("{"):
            action.choices = shown[1:-1].split(",")
        elif words & FILES:
            action.complete = shtab.FILE
        elif "DIR" in words:
            action.complete = shtab.DIRECTORY
