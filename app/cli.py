"""The ``spectra`` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from engine.errors import SpectraError

DESCRIPTION = """\
Lossless speculative decoding: a large language model, faster, writing exactly what it would have written.

  spectra serve                      start the OpenAI-compatible server, by default with a small model
  spectra generate --prompt "..."    complete one prompt (or a file of prompts) offline, without a server
  spectra chat                       talk to a running server, and see who drafted which token
"""
ROOMS = {  # of app/commands, and what is said of the commands in each; "": in no room
    "": {
        "serve": "start the OpenAI-compatible server",
        "generate": "complete prompts offline",
        "chat": "talk to a running server in a terminal",
    },
    "measuring": {
        "bench": "compare methods on the same prompts",
        "load": "load an OpenAI-compatible server and report what clients see",
    },
    "operation": {
        "keys": "make, list and revoke the keys of a server",
        "check": "name what is misspelt in a Serve config file or a RayService",
        "doctor": "look whether this machine has what a server needs",
        "plan": "say how a model fits on GPUs, and estimate what they would give",
        "completion": "make a script that completes commands in a shell",
        "k8s": "make the manifests of an overlay for Kubernetes",
        "env": "show the environment that every node of a cluster needs before its Ray starts",
    },
    "training": {
        "heads": "find the attention heads that pld-plus-a reads",
        "vocabulary": "let the model score its vocabulary once, for better drafts",
        "train": "train a drafter for a target",
    },
    "corpus": {
        "corpus": "build snapshots of text for retrieval, and look after them",
    },
}


class Command(argparse.ArgumentParser):
    """A command's parser. Its module, which adds the arguments, is imported when the command is the one given."""

    def __init__(self, module: str = "", **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self._module = module

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As every parser does, the arguments added before; a mistyped flag ends the process with a hint."""
        self.fill()
        args = sys.argv[1:] if args is None else args
        for word in args:
            if word == "--" or (self._subparsers and not word.startswith("-")):  # what follows is not this parser's
                break
            self._check_flag(word.partition("=")[0])
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and unknown[0] == args[0] and not args[0].startswith("-") and "--model" in self._flags():
            hint = f"did you mean --model {args[0]}?"  # as for `vllm serve MODEL`
            self.exit(2, f"{self.prog}: {args[0]!r} is not the value of a flag; {hint}\n")
        return found, unknown

    def _check_flag(self, word: str) -> None:
        if word.startswith("--") and " " not in word and not any(flag.startswith(word) for flag in self._flags()):
            near = " or ".join(get_close_matches(word, self._flags(visible=True), 2))
            hint = f"did you mean {near}?" if near else f"`{self.prog} --help` lists the flags"
            self.exit(2, f"{self.prog}: {word} is an unknown flag; {hint}\n")

    def _flags(self, *, visible: bool = False) -> list[str]:
        actions = [one for one in self._actions if not visible or one.help != argparse.SUPPRESS]
        return [flag for one in actions for flag in one.option_strings]

    def fill(self) -> None:
        """Add the arguments now, with the module's ``DESCRIPTION`` and ``run`` unless its subcommands have theirs."""
        if self._module:
            module = import_module(self._module)
            self.description = getattr(module, "DESCRIPTION", None)
            self.set_defaults(run=getattr(module, "run", None))
            module.add_arguments(self)
            self._module = ""


class _Version(argparse.Action):
    """Looks the version up when it is asked for, not before."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from app.version import VERSION

        print(f"spectra-serve {VERSION}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = Command(prog="spectra", description=DESCRIPTION)
    top.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for room, inside in ROOMS.items():
        for name, says in inside.items():
            commands.add_parser(name, help=says, module=".".join(filter(None, ("app.commands", room, name))))
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; a mistake of the user's is one line on stderr and status 2."""
    top = parser()
    arguments = top.parse_args(argv)
    if "parser" in arguments:  # of a command that is about all commands
        arguments.parser = top
    try:
        status: int = arguments.run(arguments)
    except SpectraError as error:
        print(f"spectra: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output, such as head, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter fails to flush at exit
        return 141
    return status


if __name__ == "__main__":
    sys.exit(main())
