"""Is `auto` ever slower than a server that is allowed `autoregressive` only, and how far from the best fixed method?

For every machine, kind of prompt, temperature and number of streams: the time that a stream's text takes, from its
submission to its last token, while so many streams decode. `auto`, no speculation and fixed methods write the same
texts in alternation; every text is compared. Ratios are of sums over paired runs, with 95 % bootstrap intervals over
turns and streams; the best fixed method is chosen on one half of the turns and compared on the other. Turns are added
until an interval is within 3 % or above its bar.

    cpu                   the model on this CPU, one thread, at 1, 4 and 16 streams
    8b-h200, 70b-h100x4   the same model writes, but a step takes what engine.simulated.profile says, and the host its
                          processor time here, in virtual time; at 16, 64 and 256 streams

The last line of stdout is one JSON document. Exit status 1: a text differs, the whole interval of a cell lies below
0.98 of no speculation, or that of a category (machine, prompts, temperature) below 0.97 of the best fixed method. A
full run takes up to three hours, --quick ten minutes; --out keeps what is done, and the same command goes on there.

    python -m benchmarks.never_slower --quick --prompts DIR --out /tmp/never-slower
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from app.inputs.default_model import DEFAULT_MODEL
from app.inputs.models import model_path
from app.reporting.progress import bar
from benchmarks.never_slower.cells import AUTO, CPU, NONE, Cell, grid
from benchmarks.never_slower.engines import CLOCKS
from benchmarks.never_slower.machines import MACHINES
from benchmarks.never_slower.prompts import CHAT, EDITS, KINDS, RANDOM, prompts_of
from benchmarks.never_slower.record_file import CellRecordFile
from benchmarks.never_slower.report import report
from benchmarks.never_slower.stand import TOGETHER, MethodComparison
from benchmarks.never_slower.summary import Summary, hopeful
from engine.errors import ConfigError
from engine.model.identity import model_hash

FIXED = ("pld", "suffix", "suffix+token-recycling", "spectra-core")
FULL = {"kinds": KINDS, "temperatures": (0.0, 0.8, 1.0), "tokens": 96, "texts": 48, "minutes": 180.0}
QUICK = {"kinds": (RANDOM, CHAT, EDITS), "temperatures": (0.0, 1.0), "tokens": 48, "texts": 12, "minutes": 10.0}
LEAST_TEXTS = 8  # of a cell, before its interval is believed


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line; --quick changes the defaults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=model_path, default=DEFAULT_MODEL, help="(default: %(default)s)")
    add("--prompts", type=Path, help="folder with spec_bench, gsm8k and humaneval (default: packaged prompts)")
    add("--only", nargs="+", choices=(CPU, *MACHINES), default=[CPU, *MACHINES], help="machines (default: all)")
    add("--kinds", nargs="+", choices=KINDS, help="of prompts (default: all)")
    add("--temperatures", nargs="+", type=float, help="default: 0 0.8 1")
    add("--concurrency", nargs="+", type=int, help="streams (default: 1 4 16 on the CPU, 16 64 256 simulated)")
    add("--fixed", nargs="*", default=FIXED, help="METHOD or METHOD@NODES, compared with none and auto")
    add("--tokens", type=int, help="of a text, at most (default: 96)")
    add("--texts", type=int, help="of a cell, at most, and at least two turns (default: 48)")
    add("--minutes", type=float, help="no turn begins after so many (default: 180, with --quick 10)")
    add(
        "--clock",
        choices=CLOCKS,
        default="processor",
        help="of this process; one thread works and waits for nothing, "
        "so on an idle machine both say the same, and on a busy one the processor's says what an idle one would",
    )
    add("--quick", action="store_true", help="three kinds, two temperatures, fewer streams and shorter texts")
    add("--out", type=Path, help="folder for records, table and picture; a run goes on from its records")
    arguments = parser.parse_args(given)
    for name, value in (QUICK if arguments.quick else FULL).items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    return arguments


def cells_of(arguments: argparse.Namespace) -> list[Cell]:
    """What is to be run."""
    cells = grid(arguments.only, arguments.kinds, arguments.temperatures, arguments.concurrency)
    if arguments.quick and arguments.concurrency is None:
        cells = [cell for cell in cells if cell.streams in ((1, 16) if cell.machine == CPU else (16, 64))]
    return cells


def methods_of(cell: Cell, file: CellRecordFile, methods: Sequence[str]) -> list[str]:
    """Methods of a cell's next turn; none: its figures are sure."""
    turns = file.turns(cell)
    if turns and (len(turns) < 2 or len(turns) * cell.streams < LEAST_TEXTS):
        return list(turns[0])
    if turns:
        return [] if Summary.of(cell, turns).is_sure else [AUTO, NONE, *hopeful(turns)]
    if cell.streams <= TOGETHER:
        return list(methods)
    # What was hopeless with fewer streams is more so with many: nodes only become dearer.
    smaller = [other for other, _ in file if other[:3] == cell[:3] and other.streams < cell.streams]
    if not smaller:
        return list(methods)
    known = file.turns(max(smaller, key=lambda other: other.streams))
    return [AUTO, NONE, *hopeful(known)]


def run(arguments: argparse.Namespace, file: CellRecordFile) -> None:
    """All turns that the file lacks: every cell once, then all that are not sure once more, and so on."""
    began, cells = time.monotonic(), cells_of(arguments)
    stand: MethodComparison | None = None
    most = {cell: max(2, int(arguments.texts) // cell.streams) for cell in cells}
    with bar(None, sum(most.values()), "turn") as shown:
        shown.update(sum(min(len(file.turns(cell)), most[cell]) for cell in cells))
        for number in range(max(most.values())):
            for cell in cells:
                if len(file.turns(cell)) != number or number >= most[cell]:
                    continue
                if time.monotonic() - began > 60 * arguments.minutes:
                    return
                methods = methods_of(cell, file, [AUTO, NONE, *arguments.fixed])
                shown.update(1 if methods else most[cell] - number)
                if methods:
                    stand = stand or stand_of(arguments)
                    shown.set_description(cell.label)
                    file.append(stand.turn(cell, number, methods))
                else:
                    most[cell] = number


def stand_of(arguments: argparse.Namespace) -> MethodComparison:
    """Ready to measure; loads the model."""
    prompts = prompts_of(arguments.kinds, arguments.prompts, arguments.model)
    stand = MethodComparison(arguments.model, prompts, arguments.fixed, arguments.tokens, CLOCKS[arguments.clock])
    for machine in arguments.only:
        stand.warm_up(machine)
    return stand


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print."""
    arguments = parsed(given)
    torch.set_num_threads(1)
    settings: dict[str, Any] = {
        "model": f"{arguments.model.name} {model_hash(arguments.model)[:12]}",
        "prompts": "packaged" if arguments.prompts is None else str(arguments.prompts),
        "fixed": list(arguments.fixed),
        "tokens": arguments.tokens,
        "clock": arguments.clock,
    }
    try:
        file = CellRecordFile(None if arguments.out is None else arguments.out / "records.jsonl", settings)
        run(arguments, file)
    except ConfigError as error:
        raise SystemExit(f"never_slower: {error}") from error
    except KeyboardInterrupt:
        print("stopped; these are the turns that were done", file=sys.stderr)
    found = report([Summary.of(cell, turns) for cell, turns in file if cell in cells_of(arguments)], settings)
    print(found.tables, flush=True)
    return found.publish(arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
