"""The ``spectra`` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from app.version import VERSION
from engine.errors import SpectraError

DESCRIPTION = """\
Lossless speculative decoding: a large language model, faster, writing exactly what it would have written.

  spectra serve                      start the OpenAI-compatible server with the demo model
  spectra generate --prompt "..."    complete one prompt (or a file of prompts) offline, without a server
  spectra bench --prompts F.jsonl    compare methods on the same prompts: acceptance, speed, identity
  spectra load --url U               load an OpenAI-compatible server: latencies, throughput, errors, identity of texts
  spectra heads find --out F.json    find the attention heads that pld-plus-a reads
  spectra corpus build --input F     turn texts into a snapshot for retrieval: those that the model finds likely
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    from app.commands import bench as bench_command
    from app.commands import corpus as corpus_command
    from app.commands import generate as generate_command
    from app.commands import heads as heads_command
    from app.commands import load as load_command
    from app.commands import serve as serve_command

    top = argparse.ArgumentParser(
        prog="spectra", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--version", action="version", version=f"spectra-serve {VERSION}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve_command.add(commands)
    generate_command.add(commands)
    bench_command.add(commands)
    load_command.add(commands)
    heads_command.add(commands)
    corpus_command.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; what a user did wrong is one line on stderr and status 2."""
    arguments = parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except SpectraError as error:
        print(f"spectra: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter fails to flush at exit
        return 141
    return status


if __name__ == "__main__":
    sys.exit(main())
