"""How a real ``spectra serve`` withstands faults, hostile requests and hours of load.

chaos  Every process is killed or stopped once while seeded streams run: does any text change? Three minutes.
fuzz   Hostile requests arrive while good streams run: does any stream notice, is anything left over? Four minutes.
soak   Half an hour of mixed load: does memory or the KV cache grow?

Each command starts its own server and stops it again. It prints tables, and one JSON document as the last line of
stdout. Exit status 1 means that a check failed (``COMMAND --help`` lists the checks). Other work on the machine
lengthens every time shown.

    python -m benchmarks.resilience chaos --out chaos
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from app.inputs.default_model import DEFAULT_MODEL
from benchmarks.resilience import chaos, fuzz, soak
from benchmarks.support.reporting import BenchmarkReport

COMMANDS = {"chaos": chaos, "fuzz": fuzz, "soak": soak}


def main() -> int:
    """Run one command; its server is stopped even if SIGINT or SIGTERM interrupts it."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.resilience", description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", help=", ".join(COMMANDS))
    for name, module in COMMANDS.items():
        command = commands.add_parser(name, description=module.__doc__, formatter_class=raw)
        command.add_argument("--model", default=DEFAULT_MODEL, help="(default: %(default)s)")
        module.add_arguments(command)
        command.add_argument("--flags", default="", help="more flags of spectra serve, in one string")
        command.add_argument("--out", type=Path, help="folder for result.json, tables.md and a plot")
    settings = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        report: BenchmarkReport = COMMANDS[settings.command].run(settings)
        return report.publish(settings.out)
    except KeyboardInterrupt:
        print("interrupted; the server has been stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
