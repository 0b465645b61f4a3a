"""How a real ``spectra serve`` holds up against faults, load and time.

chaos      every process is killed and stopped once while seeded streams run: does any text change?
standby    stages are killed with and without processes that wait for them: how long is a stream without text?
rolling    every deployment is replaced by serve deploy while seeded streams run: is any lost?
retrieval  snapshots are published, rolled back and damaged, and the Redis dies: does any request notice?
overload   several times the capacity: which requests are refused, how long do the admitted ones wait?
fuzz       malformed and extreme requests beside good streams: does any stream notice, is anything left over?
soak       mixed load for half an hour: does memory or the KV cache grow?
oracle     a stranger guesses at another's prompt: what do cached tokens and times tell?

Each command starts what it needs and ends it again. The last line of stdout is one JSON document; exit status 1 says
that something went wrong (`COMMAND --help` names what). Other work on the machine lengthens every time shown.

    python -m benchmarks.resilience chaos --out chaos
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from benchmarks.resilience import chaos, fuzz, oracle, overload, rolling, soak
from benchmarks.resilience.retrieval import command as retrieval
from benchmarks.resilience.standby import command as standby
from benchmarks.support.reporting import BenchmarkReport

COMMANDS = {
    "chaos": chaos,
    "standby": standby,
    "rolling": rolling,
    "retrieval": retrieval,
    "overload": overload,
    "fuzz": fuzz,
    "soak": soak,
    "oracle": oracle,
}


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.resilience", description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", help=", ".join(COMMANDS))
    for name, module in COMMANDS.items():
        command = commands.add_parser(name, description=module.__doc__, formatter_class=raw)
        module.add_arguments(command)
        command.add_argument("--out", type=Path, help="folder for result.json, tables.md and the plot")
        command.set_defaults(fail=command.error)
    return parser.parse_args(arguments)


def main() -> int:
    """Run one command; what it started ends in any case."""
    settings = parsed()
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    with suppress(KeyboardInterrupt):
        report: BenchmarkReport = COMMANDS[settings.command].run(settings)
        return report.publish(settings.out)
    print("interrupted; everything that was started has ended", file=sys.stderr)
    return 130


def interrupt(*_: object) -> NoReturn:
    """End the command once; a second Ctrl-C must not keep servers from being stopped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main())
