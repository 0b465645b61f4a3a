"""The ``spectra`` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from engine.errors import SpectraError

DESCRIPTION = """\
Serve a large language model faster, with exactly the text that it would write without speculation.

  spectra serve                      start an OpenAI-compatible server, by default with a small model
  spectra generate --prompt "..."    complete one prompt, or a file of prompts, without a server
  spectra chat                       chat with a running server and see which method drafted each token
"""
ROOMS = {  # folder of app/commands, "" for none -> command -> help
    "": {
        "serve": "start the OpenAI-compatible server",
        "generate": "complete prompts offline",
        "chat": "chat with a running server in a terminal",
    },
    "measuring": {
        "bench": "compare methods on the same prompts",
        "load": "send load to any OpenAI-compatible server and report what clients see",
    },
    "operation": {
        "keys": "create, list and revoke API keys",
        "check": "check a Serve config file or a RayService for errors",
        "doctor": "check that this machine has what a server needs",
        "plan": "compute how a model fits on GPUs, and estimate its speed",
        "completion": "print a script that completes commands in a shell",
        "k8s": "print the Kubernetes manifests of an overlay",
        "env": "print the environment variables that each node of a cluster needs before its Ray starts",
    },
    "training": {
        "heads": "find the attention heads that method pld-plus-a reads",
        "vocabulary": "let the model score its vocabulary once, for better drafts",
        "train": "train a drafter for a target",
    },
    "corpus": {
        "corpus": "build, publish and manage snapshots of text for retrieval",
    },
}


class Command(argparse.ArgumentParser):
    """The parser of one command; the command's module is imported when the command is used."""

    def __init__(self, module: str = "", **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)
        self._module = module

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; exit with a hint if a flag is mistyped."""
        self.fill()
        args = sys.argv[1:] if args is None else args
        for word in args:
            if word == "--" or (self._subparsers and not word.startswith("-")):  # a subcommand parses the rest
                break
            self._check_flag(word.partition("=")[0])
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and unknown[0] == args[0] and not args[0].startswith("-") and "--model" in self._flags():
            hint = f"did you mean --model {args[0]}?"  # as for `vllm serve MODEL`
            self.exit(2, f"{self.prog}: {args[0]!r} is not the value of a flag; {hint}\n")
        if unknown and not self._subparsers:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def _check_flag(self, word: str) -> None:
        if word.startswith("--") and " " not in word and word not in self._flags():
            near = " or ".join(get_close_matches(word, self._flags(visible=True), 2))
            hint = f"did you mean {near}?" if near else f"`{self.prog} --help` lists the flags"
            self.exit(2, f"{self.prog}: {word} is an unknown flag; {hint}\n")

    def error(self, message: str) -> NoReturn:
        """Exit with one line instead of the usage, which fills a screen."""
        self.exit(2, f"{self.prog}: error: {message} (see `{self.prog} --help`)\n")

    def _flags(self, *, visible: bool = False) -> list[str]:
        actions = [
            one for one in self._actions if not visible or getattr(one, "full_help", one.help) != argparse.SUPPRESS
        ]
        return [flag for one in actions for flag in one.option_strings]

    def fill(self) -> None:
        """Add the arguments of the command's module, its ``DESCRIPTION`` and ``run``, once."""
        if self._module:
            module = import_module(self._module)
            self.description = getattr(module, "DESCRIPTION", None)
            self.set_defaults(run=getattr(module, "run", None))
            module.add_arguments(self)
            self._module = ""


class _Version(argparse.Action):
    """Prints the version; reads it only then, because that is slow."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from app.version import VERSION

        print(f"spectra-serve {VERSION}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = Command(prog="spectra", description=DESCRIPTION)
    top.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for room, inside in ROOMS.items():
        for name, says in inside.items():
            commands.add_parser(name, help=says, module=".".join(filter(None, ("app.commands", room, name))))
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; an error of the user is one line on stderr and status 2."""
    top = parser()
    arguments = top.parse_args(argv)
    if "parser" in arguments:  # completion needs all commands
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
